#!/usr/bin/env bash
# Everything assisted decoding needs: verifier, its own outputs, drafter, and its acceptance.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/train_assisted.sh DATA --save-dir DIR [options] [-- the drafter's flags of fairseq-train]

From data to a verifier and a drafter for --decoding assisted: a shallow decoder on the verifier's
own encoder, which drafts token by token (--arch shallow_decoder). By paradec train, distill and
paradec benchmark. Stopped or killed, the same command goes on where it was. A CUDA device is used
if there is one; CUDA_VISIBLE_DEVICES= keeps it on the CPU.

input:
    DATA                   a folder that fairseq-preprocess made (paths have no ':' in them)
output:
    DIR/verifier/          [1/3] a Transformer, unless --verifier is given
    DIR/greedy/            [2/3] DATA with the verifier's greedy translations, also for validation,
    DIR/drafter/           (by way of greedy.train/), and the drafter trained on them, model.pt
    DIR/acceptance.json    [3/3] passes and accepted tokens on DATA's validation set, also printed

options:
    --preset NAME          of both models: tiny, small, iwslt, base, big (default: base); see train.sh
    --layers N             of the drafter's decoder (default: 1); its sizes are the verifier's
    --verifier FILE        a trained Transformer
    --draft-on WHAT        what the drafter learns (default: own-greedy)
                             own-greedy  what the verifier will say: its greedy translations
                             references  the targets of DATA
    --epochs N             how long the drafter is trained (default: the preset's; see train.sh)
    --updates N            or for N updates
    --seed N               of both models (default: 1)
    --threads N            of each process on a CPU (default: the cores shared out evenly)
    --processes N          for training and translating (default: 1)
    --smoke                a try-out of every step in a minute or two: 20 updates, 64 sentences to
                           distil, 8 to decode; without --save-dir in a temporary folder
    --python PYTHON        default: .venv/bin/python in this checkout, else python3

examples:
    scripts/train_assisted.sh data-bin/wmt14.en-de --save-dir checkpoints/assisted
    scripts/train_assisted.sh data-bin/multi30k.en-de --save-dir checkpoints/narrow --preset tiny \
        --verifier checkpoints/tiny/model.pt -- --decoder-embed-dim 64 --decoder-ffn-embed-dim 128
HELP
}

{ # read to its end before anything runs, so that the file may change while models are trained
save_dir='' preset=base arch=shallow_decoder layers=1 verifier='' draft_on=own-greedy epochs=''
updates='' seed=1 threads='' processes=1 smoke=''
parse_options "--save-dir --preset --layers --verifier --draft-on --epochs --updates --seed \
--threads --processes --python" "--smoke" "$@"
need_recipe_options
need_number --layers "$layers"
need_choice --draft-on "$draft_on" own-greedy references
need_validation_and_verifier
need_python fairseq torch tqdm
open_save_dir

if [ -n "$verifier" ]; then
    note "[1/3] verifier: $verifier"
else
    note "[1/3] verifier: $save_dir/verifier"
    train "$data" "$save_dir/verifier"
    verifier=$save_dir/verifier/model.pt
fi
note "[2/3] drafter: $save_dir/drafter, on $draft_on"
train_drafter --decoder-layers "$layers"
note "[3/3] acceptance: $save_dir/acceptance.json"
count_accepted --decoder assisted
exit 0
}
