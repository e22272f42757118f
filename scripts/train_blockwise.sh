#!/usr/bin/env bash
# Prediction heads on a Transformer: base, distilled data, heads, and the lengths of its blocks.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/train_blockwise.sh DATA --save-dir DIR [options] [-- fairseq-train's flags]

From data to a model for --decoding blockwise (Stern et al. 2018), by paradec train, distill and
benchmark. Stopped or killed, the same command goes on where it was; what is finished is not
made again. A CUDA device is used if there is one; CUDA_VISIBLE_DEVICES= keeps it on the CPU.

input:
    DATA                   a folder that fairseq-preprocess made (paths have no ':' in them); or one
                           of images, by paradec data images (section 7.2 of the paper):
                           --arch image_transformer then, and blockwise_image_transformer
output:
    DIR/base/              [1/6] a Transformer, unless --base is given
    DIR/data.SRC-TGT/      [2/6] DATA with a teacher's translations (beam 5) as training targets
    DIR/frozen/            [3/6] to fine-tune a tiny or small base: it with heads, trained while it is
                           frozen, unless --heads is given. Larger ones start without heads, as in the paper
    DIR/model/             [4/6] the base with heads, trained: model.pt
    DIR/heads.pt           [5/6] of a frozen base the heads alone, for --drafter-path
    DIR/acceptance.json    [6/6] mean accepted block of the exact rule, top-2 and top-3, beside the
                           base; also BLEU and chrF if there is DATA/raw/SUBSET.TGT. Of images:
                           exact, intensities up to 2 away (the paper's epsilon), and PSNR
A step that is not needed is left out.

options:
    --setting NAME         the base's weights, and the data (default: regular)
                                           base        data
                             regular       frozen      DATA
                             distillation  frozen      distilled
                             fine-tuning   trained     DATA
                             both          trained     distilled
                           A frozen base keeps its translations; a trained one has longer blocks and
                           other translations, which distilled data keep from getting much worse.
                           Images are not distilled
    --block-size K         the next word and K-1 more (default: tiny and small 6, others 8); what is decoded
                           may be less
    --preset NAME          size and settings: tiny, small, iwslt, base, big (default: base); see train.sh
    --base FILE            a trained Transformer, whose size the model has
    --heads FILE           to fine-tune: --base with heads to start from, such as the model/model.pt of
                           setting regular or distillation; instead of DIR/frozen/
    --teacher FILES        whose translations are learned from (default: the base's; the paper's is
                           another, of another seed); several with ':' between them are an ensemble
    --distilled FOLDER     distilled data that are there already
    --subset NAME          of DATA, for the report: valid or test (default: valid)
    --epochs N             how long heads are trained (default: the preset's; see train.sh)
    --updates N            or for N updates
    --seed N               of all models (default: 1)
    --threads N            of each process on a CPU (default: the cores shared out evenly)
    --processes N          for training and translating (default: 1)
    --smoke                a try-out of every step in a minute or two: 20 updates, 64 sentences to
                           distil, 8 to decode; without --save-dir in a temporary folder
    --python PYTHON        default: .venv/bin/python in this checkout, else python3

examples:
    scripts/train_blockwise.sh data-bin/wmt14.en-de --save-dir checkpoints/blockwise --setting both
Heads for a model that is there, which stays as it is:
    scripts/train_blockwise.sh data-bin/multi30k.en-de --save-dir checkpoints/k6 --preset tiny \
        --base checkpoints/tiny/model.pt --block-size 6
The longest blocks, on distilled data that are there:
    scripts/train_blockwise.sh data-bin/multi30k.en-de --save-dir checkpoints/k6-both \
        --preset tiny --setting both --base checkpoints/tiny/model.pt \
        --distilled data-bin/multi30k-distilled.en-de
The same from heads that are there:
    scripts/train_blockwise.sh data-bin/multi30k.en-de --save-dir checkpoints/k6-both \
        --preset tiny --setting both --base checkpoints/tiny/model.pt \
        --heads checkpoints/k6/model/model.pt --distilled data-bin/multi30k-distilled.en-de
Images, with a base of their own:
    scripts/train_blockwise.sh data-bin/photographs --save-dir checkpoints/images --preset tiny
The layer with fewer weights:
    scripts/train_blockwise.sh data-bin/wmt14.en-de --save-dir checkpoints/k8-small \
        --base checkpoints/base/model.pt -- --head-layer per_head
Then: fairseq-generate DATA --user-dir fairseq_paradec --decoding blockwise, with
    --path DIR/model/model.pt, or --path BASE --drafter-path DIR/heads.pt
HELP
}

{ # read to its end before anything runs, so that the file may change while models are trained
save_dir='' preset=base setting=regular block_size='' base='' heads='' teacher='' distilled=''
subset=valid epochs='' updates='' seed=1 threads='' processes=1 smoke=''
parse_options "--save-dir --preset --setting --block-size --base --heads --teacher --distilled \
--subset --epochs --updates --seed --threads --processes --python" "--smoke" "$@"

# ---- mistakes, before any work ------------------------------------------------------------------

need_recipe_options
need_choice --setting "$setting" regular distillation fine-tuning both
need_choice --subset "$subset" valid test
[ -z "$block_size" ] || need_number --block-size "$block_size"
own_first='' # whether head 1 is trained
layer=()     # the kind of heads, which those to start from have, too
for ((i = 0; i < ${#more[@]}; i++)); do
    flag=${more[i]}
    case $flag in
        --head-layer) layer=("${more[@]:i:2}") ;;
        --head-layer=*) layer=("$flag") ;;
        --train-first-head) own_first=1 ;;
        --base-path | --base-path=*) fail "$flag: got it after --; allowed: --base FILE before it" ;;
        --fine-tune-base) fail "$flag: got it after --; allowed: --setting NAME before it" ;;
        --block-size | --block-size=*) fail "$flag: got it after --; allowed: it before --" ;;
    esac
done
frozen='' distils=''
case $setting in regular | distillation) frozen=1 ;; esac
case $setting in distillation | both) distils=1 ;; esac
plain=transformer arch=()
if [ -f "$data/sizes.json" ]; then
    plain=image_transformer arch=(--arch image_transformer)
    [ -z "$distils" ] || fail "--setting: got '$setting'; allowed with images: regular, fine-tuning"
fi
[ "$block_size" != 1 ] || [ -z "$frozen" ] || [ -n "$own_first" ] ||
    fail "--block-size: got '1'; allowed: from 2 up with --setting $setting, for there is nothing" \
        "else to train"
files=("$data"/train.*-*.*.idx)
[ -f "${files[0]}" ] || fail "DATA: got '$data', which has no training set (train.*.idx)"
pair=${files[0]##*/train.}
pair=${pair%%.*} # en-de
[ -f "$data/$subset.$pair.${pair#*-}.idx" ] ||
    fail "--subset: got '$subset'; allowed: one that DATA has ($data/$subset.$pair.*.idx)"
if [ -n "$distilled" ]; then
    [ -n "$distils" ] || fail "--distilled: got '$distilled', of which nothing would be learned;" \
        "allowed: with --setting distillation or both"
    need_no_colon --distilled "$distilled"
    need_dir "$distilled" "distilled data (--distilled)"
    case $distilled in -*) distilled=./$distilled ;; esac
    need_file "$distilled/train.$pair.${pair#*-}.idx" "training set (--distilled)"
    for dict in "$data"/dict.*.txt; do
        cmp -s -- "$dict" "$distilled/${dict##*/}" ||
            fail "--distilled: got '$distilled'; allowed: a folder with DATA's ${dict##*/}"
    done
fi
if [ -n "$teacher" ]; then
    [ -n "$distils" ] && [ -z "$distilled" ] ||
        fail "--teacher: got '$teacher', of which nothing would be learned;" \
            "allowed: with --setting distillation or both, and without --distilled"
    need_teacher
    case $teacher in -*) teacher=./$teacher ;; esac
fi
if [ -n "$base" ]; then
    need_no_colon --base "$base"
    need_file "$base" "base (--base)"
    case $base in -*) base=./$base ;; esac
fi
if [ -n "$heads" ]; then
    [ -z "$frozen" ] && [ -n "$base" ] || fail "--heads: got '$heads'; allowed: with --setting" \
        "fine-tuning or both, and the --base that the heads are on"
    need_no_colon --heads "$heads"
    need_file "$heads" "base with heads (--heads)"
    case $heads in -*) heads=./$heads ;; esac
fi
need_python fairseq torch tqdm sacrebleu
open_save_dir

# ---- the steps: each records what is finished, and its settings ---------------------------------

if [ -n "$base" ]; then
    note "[1/6] base: $base"
else
    note "[1/6] base: $save_dir/base"
    train "$data" "$save_dir/base" "${arch[@]}"
    base=$save_dir/base/model.pt
fi
if [ -z "$distils" ]; then
    distilled=$data
    note "[2/6] distilled data: not needed"
elif [ -n "$distilled" ]; then
    note "[2/6] distilled data: $distilled"
else
    distilled=$save_dir/data.$pair
    note "[2/6] distilled data: $distilled"
    distill "$data" "$distilled" --path "${teacher:-$base}"
fi

flags=()
[ -z "$block_size" ] || flags=(--block-size "$block_size")
start=${heads:-$base}
if [ -n "$heads" ]; then
    note "[3/6] heads to start from: $heads"
elif [ -n "$frozen" ] || [[ $preset != tiny && $preset != small ]] || [ "$block_size" = 1 ]; then
    note "[3/6] heads to start from: none"
else
    note "[3/6] heads to start from: $save_dir/frozen"
    train "$distilled" "$save_dir/frozen" --arch "blockwise_$plain" --start-from "$base" \
        -- "${flags[@]}" "${layer[@]}"
    start=$save_dir/frozen/model.pt
fi
note "[4/6] model: $save_dir/model, $setting"
[ -n "$frozen" ] || flags+=(--fine-tune-base)
length
train "$distilled" "$save_dir/model" --arch "blockwise_$plain" --start-from "$start" "${long[@]}" \
    -- "${flags[@]}" "${more[@]}"
model=$save_dir/model/model.pt

models=("--path=$base")
if [ -z "$frozen" ] || [ -n "$own_first" ]; then
    note "[5/6] heads: not without the model"
    models+=("--path=$model")
else
    heads=$save_dir/heads.pt
    note "[5/6] heads: $heads"
    if [ "$heads" -nt "$model" ]; then
        note "already made: $heads"
    else
        run "${paradec[@]}" shrink --heads-only --max-mb 10000 -- \
            "$model" "$heads"
    fi
    models+=("--sweep=drafter-path=$heads")
fi

note "[6/6] acceptance: $save_dir/acceptance.json"
raw=$data/raw/$subset.${pair#*-} score=() rules=--sweep=accept-topk=1,2,3
if [ "$plain" = image_transformer ]; then
    rules=--sweep=accept-distance=0,2
elif [ -f "$raw" ]; then
    score=("--reference=$raw")
else
    note "no BLEU, for there is no $raw"
fi
use_threads
run "${paradec[@]}" benchmark "$data" --preset acceptance "${models[@]}" --decoder blockwise \
    "$rules" --subset "$subset" "${score[@]}" \
    --device "$device" "${try_out[@]}" "--title=Blockwise: $setting, $preset" \
    "--out=$save_dir/acceptance.json"
[ -n "$temporary" ] || note "done: $model"
exit 0
}
