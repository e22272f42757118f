#!/usr/bin/env bash
# Everything that drafts need: verifier, what it says, a drafter of it, and its acceptance.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/train_drafter.sh DATA --save-dir DIR [options] [-- the drafter's flags of fairseq-train]

From data to a verifier and a drafter for it, by paradec train, distill and benchmark: a shallow
decoder for --decoding assisted, or a block model for gad and gad_pp (Xia et al. 2022). Stopped or
killed, the same command goes on where it was; what is finished is not made again. A CUDA device is
used if there is one; CUDA_VISIBLE_DEVICES= keeps it on the CPU. For a model folder and plain text
there is paradec train-drafter.

input:
    DATA                   a folder that fairseq-preprocess made (paths have no ':' in them)
output:
    DIR/teacher/           [1/5] a Transformer, unless --teacher is given
    DIR/distilled/         [2/5] DATA with the teacher's translations (beam 5) as training targets
    DIR/verifier/          [3/5] a Transformer, unless --verifier is given; with --kind block, or
                           --draft-on teacher, it is trained on the distilled data, else on DATA
    DIR/greedy/            [4/5] DATA with the verifier's greedy translations, also for validation,
    DIR/drafter/           (by way of greedy.train/), and the drafter trained on them, model.pt
    DIR/acceptance.json    [5/5] passes and accepted tokens on DATA's validation set, also printed
A step that the drafter does not need is left out.

options:
    --kind KIND            what drafts (default: shallow)
                             shallow  a decoder of one layer on the verifier's own encoder, token by
                                      token
                             block    a model that fills a block of masks in one pass
    --layers N             of a shallow decoder (default: 1); its sizes are the verifier's
    --fast                 a block model of 4 decoder layers on the verifier's own encoder, with the
                           prefix cached: the same as --arch block_nat_fast
    --arch NAME            a block model's architecture (default: block_nat, the paper's). Its encoder
                           starts from the verifier's, and it has the verifier's sizes
    --preset NAME          of all models: tiny, small, iwslt, base, big (default: base); see train.sh
    --teacher FILES        a trained teacher; several with ':' between them are an ensemble
    --verifier FILE        a trained Transformer
    --draft-on WHAT        what the drafter learns (default: own-greedy)
                             own-greedy  what the verifier will say: its greedy translations
                             teacher     the teacher's translations (the paper's)
                             references  the targets of DATA
    --epochs N             how long the drafter is trained (default: the preset's; see train.sh)
    --updates N            or for N updates
    --seed N               of all models (default: 1)
    --threads N            of each process on a CPU (default: the cores shared out evenly)
    --processes N          for training and translating (default: 1)
    --smoke                a try-out of every step in a minute or two: 20 updates, 64 sentences to
                           distil, 8 to decode; without --save-dir in a temporary folder
    --python PYTHON        default: .venv/bin/python in this checkout, else python3

examples:
    scripts/train_drafter.sh data-bin/wmt14.en-de --save-dir checkpoints/assisted
    scripts/train_drafter.sh data-bin/wmt14.en-de --save-dir checkpoints/gad --kind block \
        --draft-on teacher
    scripts/train_drafter.sh data-bin/multi30k.en-de --save-dir checkpoints/narrow --preset tiny \
        --verifier checkpoints/tiny/model.pt -- --decoder-embed-dim 64 --decoder-ffn-embed-dim 128
    scripts/train_drafter.sh data-bin/multi30k.en-de --save-dir checkpoints/k10 --preset tiny \
        --kind block --fast --verifier checkpoints/tiny-gad/verifier/model.pt -- \
        --drafter-block-size 10 --random-block-size --prefixes-after-errors 0.5
HELP
}

{ # read to its end before anything runs, so that the file may change while models are trained
save_dir='' preset=base kind=shallow layers='' arch='' fast='' teacher='' verifier=''
draft_on=own-greedy epochs='' updates='' seed=1 threads='' processes=1 smoke=''
parse_options "--save-dir --preset --kind --layers --arch --teacher --verifier --draft-on --epochs \
--updates --seed --threads --processes --python" "--fast --smoke" "$@"

# ---- mistakes, before any work ------------------------------------------------------------------

need_recipe_options
need_choice --kind "$kind" shallow block
need_choice --draft-on "$draft_on" own-greedy teacher references
[ -z "$fast" ] || [ -z "$arch" ] || fail "--fast and --arch: only one of them"
own=() # flags of fairseq-train that those of the command line can change
if [ "$kind" = shallow ]; then
    [ -z "$fast" ] || fail "--fast: got it with --kind shallow; allowed: with --kind block"
    [ -z "$arch" ] || fail "--arch: got '$arch' with --kind shallow; allowed: with --kind block"
    [ -z "$layers" ] || need_number --layers "$layers"
    arch=shallow_decoder own=(--decoder-layers "${layers:-1}")
    rules=(--decoder assisted)
else
    [ -z "$layers" ] || fail "--layers: got '$layers' with --kind block; allowed: with --kind shallow"
    [ -z "$fast" ] || arch=block_nat_fast
    arch=${arch:-block_nat}
    [[ $arch == block_nat* ]] ||
        fail "--arch: got '$arch'; allowed: a drafter's (block_nat, block_nat_fast, ...)"
    rules=(--decoder gad --decoder gad_pp --sweep accept-topk=3 --sweep accept-margin=1.0)
fi
taught= # is there anything to be learned from a teacher?
[ "$draft_on" != teacher ] && { [ "$kind" = shallow ] || [ -n "$verifier" ]; } || taught=1
if [ -n "$teacher" ]; then
    [ -n "$taught" ] || fail "--teacher: got '$teacher', of which nothing would be learned;" \
        "allowed: with --draft-on teacher, or with --kind block and without --verifier"
    need_teacher
fi
subsets=("$data"/valid.*-*.*.idx)
[ -f "${subsets[0]}" ] || fail "DATA: got '$data', which has no validation set (valid.*.idx)"
if [ -n "$verifier" ]; then
    need_no_colon --verifier "$verifier"
    need_file "$verifier" "verifier (--verifier)"
    case $verifier in -*) verifier=./$verifier ;; esac
fi
need_python fairseq torch tqdm
open_save_dir

# ---- the steps: each records what is finished, and its settings ---------------------------------

targets=$data # of the verifier
if [ -z "$taught" ]; then
    note "[1/5] teacher: not needed"
    note "[2/5] distilled data: not needed"
else
    if [ -n "$teacher" ]; then
        note "[1/5] teacher: $teacher"
    else
        note "[1/5] teacher: $save_dir/teacher"
        train "$data" "$save_dir/teacher"
        teacher=$save_dir/teacher/model.pt
    fi
    targets=$save_dir/distilled
    note "[2/5] distilled data: $targets"
    distill "$data" "$targets" --path "$teacher"
fi
if [ -n "$verifier" ]; then
    note "[3/5] verifier: $verifier"
else
    note "[3/5] verifier: $save_dir/verifier"
    train "$targets" "$save_dir/verifier"
    verifier=$save_dir/verifier/model.pt
fi
note "[4/5] drafter: $save_dir/drafter, on $draft_on"
case $draft_on in
    own-greedy)
        drafts=$save_dir/greedy
        distill "$data" "$drafts.train" --path "$verifier" --beam 1
        distill "$drafts.train" "$drafts" --path "$verifier" --beam 1 --subset valid
        ;;
    teacher) drafts=$targets ;;
    references) drafts=$data ;;
esac
length
train "$drafts" "$save_dir/drafter" --arch "$arch" --start-from "$verifier" "${long[@]}" \
    -- "${own[@]}" "${more[@]}"
note "[5/5] acceptance: $save_dir/acceptance.json"
use_threads
run "${paradec[@]}" benchmark "$data" --preset acceptance "--path=$verifier" \
    "--sweep=drafter-path=$save_dir/drafter/model.pt" "${rules[@]}" --subset valid \
    --device "$device" "${try_out[@]}" "--title=Acceptance: $arch, $preset, on $draft_on" \
    "--out=$save_dir/acceptance.json"
[ -n "$temporary" ] || note "done: $verifier and $save_dir/drafter/model.pt"
exit 0
}
