#!/usr/bin/env bash
# A decoder that writes its target in another order: teacher, distilled data, model, scores.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/train_reordered.sh DATA --save-dir DIR [options] [-- fairseq-train's flags]

From data to a decoder that writes several words a step, from both ends of the sentence for example
(Zhang et al. 2020; Imamura and Sumita 2020), by paradec train, distill and benchmark. Stopped or
killed, the same command goes on where it was; what is finished is not made again. A CUDA device
is used if there is one; CUDA_VISIBLE_DEVICES= keeps it on the CPU.

input:
    DATA                   a folder that fairseq-preprocess made (paths have no ':' in them)
output:
    DIR/teacher/           [1/4] a Transformer, unless --teacher is given
    DIR/data.SRC-TGT/      [2/4] DATA with the teacher's translations (beam 5) as training targets
    DIR/model/             [3/4] the decoder, trained on these: model.pt
    DIR/quality.json       [4/4] BLEU and chrF of DATA's test set, against DATA/raw/test.TGT, with
                           beam 1 and the paper's beam; beside the teacher's. Without that file
                           nothing is scored
A step that is not needed is left out.

options:
    --arch NAME            what it writes (default: ibdecoder)
                             ibdecoder         two words a step, one from each end
                             ibdecoder_sa      four, two from each end
                             imdecoder         four, from both ends of each half
                             sa_transformer    two neighbours, from the left
                             transformer_r2l   one, from the right
                             transformer_both_ends
                                               one, from the left and the right in turns
                             double_token, double_token_l2r, double_token_r2l
                                               two, as Imamura and Sumita have them
                             transformer       one, from the left: for comparison
    --preset NAME          size and settings: tiny, small, iwslt, base, big (default: base); see train.sh
    --student              of 2 decoder layers (Zhang et al., Table 4)
    --teacher FILES        a trained Transformer; several with ':' between them are an ensemble
    --distilled FOLDER     distilled data that are there already
    --no-distillation      train on DATA itself
    --from-teacher         start from the teacher, and train for about a third of the time (tiny 14
                           epochs, small 4, iwslt 15, base 35,000 updates, big 100,000)
    --epochs N             how long the decoder is trained (default: the preset's; see train.sh)
    --updates N            or for N updates
    --seed N               of all models (default: 1)
    --threads N            of each process on a CPU (default: the cores shared out evenly)
    --processes N          for training and translating (default: 1)
    --smoke                a try-out of every step in a minute or two: 20 updates, 64 sentences to
                           distil, outputs of 5 tokens; without --save-dir in a temporary folder
    --python PYTHON        default: .venv/bin/python in this checkout, else python3

examples:
    scripts/train_reordered.sh data-bin/wmt14.en-de --save-dir checkpoints/ibdecoder
    scripts/train_reordered.sh data-bin/multi30k.en-de --save-dir checkpoints/tiny-ibdecoder \
        --preset tiny --teacher checkpoints/tiny/model.pt --from-teacher
Another decoder on the same teacher and data, of half the depth:
    scripts/train_reordered.sh data-bin/multi30k.en-de --save-dir checkpoints/sa --preset tiny \
        --arch ibdecoder_sa --student --distilled checkpoints/tiny-ibdecoder/data.en-de
Four neighbours a step, without distillation:
    scripts/train_reordered.sh data-bin/multi30k.en-de --save-dir checkpoints/sa4 --preset tiny \
        --arch sa_transformer --no-distillation -- --tokens-per-direction 4
Then: fairseq-generate DATA --path DIR/model/model.pt --user-dir fairseq_paradec
HELP
}

{ # read to its end before anything runs, so that the file may change while models are trained
save_dir='' preset=base arch=ibdecoder teacher='' distilled='' no_distillation='' from_teacher=''
student='' epochs='' updates='' seed=1 threads='' processes=1 smoke=''
parse_options "--save-dir --preset --arch --teacher --distilled --epochs --updates --seed --threads \
--processes --python" "--no-distillation --from-teacher --student --smoke" "$@"

# ---- mistakes, before any work ------------------------------------------------------------------

need_recipe_options
need_choice --arch "$arch" ibdecoder ibdecoder_sa imdecoder sa_transformer transformer_r2l \
    transformer_both_ends double_token double_token_l2r double_token_r2l transformer
subsets=("$data"/train.*-*.*.idx)
[ -f "${subsets[0]}" ] || fail "DATA: got '$data', which has no training set (train.*.idx)"
pair=${subsets[0]##*/train.}
pair=${pair%%.*} # en-de
[ -z "$distilled" ] || [ -z "$no_distillation" ] ||
    fail "--distilled and --no-distillation: only one of them"
if [ -n "$distilled" ]; then
    need_no_colon --distilled "$distilled"
    need_dir "$distilled" "distilled data (--distilled)"
    case $distilled in -*) distilled=./$distilled ;; esac
    need_file "$distilled/train.$pair.${pair#*-}.idx" "training set (--distilled)"
    for dict in "$data"/dict.*.txt; do
        cmp -s -- "$dict" "$distilled/${dict##*/}" ||
            fail "--distilled: got '$distilled'; allowed: a folder with DATA's ${dict##*/}"
    done
fi
taught= # is there anything to be learned from a teacher?
[ -n "$distilled$no_distillation" ] && [ -z "$from_teacher" ] || taught=1
if [ -n "$teacher" ]; then
    [ -n "$taught" ] || fail "--teacher: got '$teacher', of which nothing would be learned;" \
        "allowed: with --from-teacher, or without --distilled and --no-distillation"
    need_teacher
    case $teacher in -*) teacher=./$teacher ;; esac
fi
if [ -n "$from_teacher" ]; then
    [ "$arch" != transformer ] ||
        fail "--from-teacher: got --arch transformer; allowed: with a reordered decoder"
    [[ $teacher != *:* ]] ||
        fail "--from-teacher: got '$teacher' (--teacher), an ensemble; allowed: one model"
fi
need_python fairseq torch tqdm sacrebleu
open_save_dir

# ---- the steps: each records what is finished, and its settings ---------------------------------

if [ -z "$taught" ]; then
    note "[1/4] teacher: not needed"
elif [ -n "$teacher" ]; then
    note "[1/4] teacher: $teacher"
else
    note "[1/4] teacher: $save_dir/teacher"
    train "$data" "$save_dir/teacher"
    teacher=$save_dir/teacher/model.pt
fi
if [ -n "$no_distillation" ]; then
    distilled=$data
    note "[2/4] distilled data: not needed"
elif [ -n "$distilled" ]; then
    note "[2/4] distilled data: $distilled"
else
    distilled=$save_dir/data.$pair
    note "[2/4] distilled data: $distilled"
    distill "$data" "$distilled" --path "$teacher"
fi

length
[ -z "$from_teacher" ] || long+=(--start-from "$teacher")
[ -z "$student" ] || more=(--decoder-layers 2 "${more[@]}")
note "[3/4] model: $save_dir/model, $arch on $distilled"
train "$distilled" "$save_dir/model" --arch "$arch" "${long[@]}" -- "${more[@]}"

model=$save_dir/model/model.pt
raw=$data/raw/test.${pair#*-}
if [ ! -f "$raw" ] || [ ! -f "$data/test.$pair.${pair#*-}.idx" ]; then
    note "[4/4] scores: left out, for there is no $raw, or no test set in DATA"
else
    note "[4/4] scores: $save_dir/quality.json"
    beam=4 how=(--lenpen 0.6) # the papers'
    [[ $arch != double_token* ]] || beam=10 how=(--lenpen 1)
    [ -z "$smoke" ] || how+=(--max-len-b 5)
    models=("--path=$model")
    [ -n "$smoke" ] || [ -z "$teacher" ] || models=("--path=$teacher" "${models[@]}")
    use_threads
    run "${paradec[@]}" benchmark "$data" --preset quality "${models[@]}" --subset test \
        "--reference=$raw" "--sweep=beam=1,$beam" "${try_out[@]}" "--title=Quality: $arch, $preset" \
        "--out=$save_dir/quality.json" -- "${how[@]}"
fi
[ -n "$temporary" ] || note "done: $model"
exit 0
}
