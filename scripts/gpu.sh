#!/usr/bin/env bash
# What a GPU is wanted for, in parts that are bounded in time and go on where they were.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/gpu.sh PART [PRESET] [options] [-- flags of the part's command]
       scripts/gpu.sh --files PART | --packages PART

Runs one part of what a GPU is wanted for, on the small pair. Stopped, killed or out of time, the
same command goes on where it was. docs/testing.md says how a machine without a network is prepared.

parts:
    gates              every method beside fairseq's search, in fp32, fp16 and bf16 (tests/gpu)
    bench              decoders at batch 1, 8 and 64, in fp32, then fp16: fairseq's searches, greedy,
                       self_draft, hgj, assisted, and transformers' searches if it is installed
    bench-ctranslate2  the same on the CPU beside CTranslate2
    profile            launches, synchronisations, host and device time of a pass; a pass in a CUDA
                       graph
    train PRESET       a model on the teacher's translations: plain, double_token, ibdecoder, or one
                       that starts from IBDecoder: ibdecoder_sa, imdecoder
    join               makes each model of OUT whole again that train has cut

output:
    OUT/gpu-gates.json, OUT/gpu-bench-DTYPE.json, OUT/gpu-profile.json, ...
                       results as paradec writes them (with .md and .png for bench)
    OUT/PRESET.json    BLEU and chrF of validation data, beside the teacher's
    OUT/PRESET.pt.00   the model in fp16, in pieces of 15 MB
    OUT/PRESET.log     what fairseq-train says of it
    WORK/              what a part needs to go on

options:
    --files            only list what the part needs of the repository, and of folders that are not
                       in it
    --packages         only list packages that the part needs besides torch and numpy
    --out OUT          (default: runs/gpu)
    --work WORK        (default: runs/gpu-work)
    --minutes N        so long at most (default: gates, bench and bench-ctranslate2 5, profile 2,
                       train 4)
    --device NAME      cuda or cpu (default: cuda)
    --data DIR         of bench and profile (default: data-bin/demo-small.en-de); of train
                       (default: data-bin/everyday-distilled.en-de, with raw/valid.de)
    --sentences N      of bench (default: 64) and profile (default: 8)
    --gad FILE         a drafter of blocks for bench and profile: gad, too
    --start FILE       what train starts from (default: the teacher; for ibdecoder_sa and imdecoder
                       an IBDecoder, which is trained first for a third of the time)
    --max-tokens N     of an update of train (default: 32768)
    --updates N        train for N updates, and as many at a falling rate, whatever the time
    --processes N      for gates (default: 6)
    --python PYTHON    default: .venv/bin/python in this checkout, else python3

examples:
    scripts/gpu.sh bench --out "$OUT" --minutes 4
    scripts/gpu.sh train imdecoder --out "$OUT" --minutes 5
    scripts/gpu.sh gates --device cpu -- -k 'hgj and float32'
HELP
}

{ # read to its end before anything runs, so that the file may change meanwhile
parts='gates bench bench-ctranslate2 profile train join'
presets='plain double_token ibdecoder ibdecoder_sa imdecoder'
pair=data-bin/demo-small.en-de
distilled=data-bin/everyday-distilled.en-de
teacher=$pair/model.pt
files='' packages='' out='' work='' minutes='' device=cuda data='' sentences='' gad='' start=''
max_tokens=32768 updates='' processes=6
parse_options "--out --work --minutes --device --data --sentences --gad --start --max-tokens \
--updates --processes --python" "--files --packages" "$@"

# ---- mistakes, before any work ------------------------------------------------------------------

part=${positional[0]:-}
# shellcheck disable=SC2086 # words
need_choice PART "$part" $parts
if [ "$part" = train ] && [ -z "$files$packages" ]; then
    preset=${positional[1]:-}
    # shellcheck disable=SC2086 # words
    need_choice PRESET "$preset" $presets
    [ ${#positional[@]} -eq 2 ] || fail "got ${#positional[@]} words; allowed: train PRESET"
else
    [ ${#positional[@]} -eq 1 ] || [ "$part" = train ] ||
        fail "got ${#positional[@]} parts; allowed: one of $parts"
fi
need_choice --device "$device" cuda cpu
for option in minutes sentences max_tokens updates processes; do
    [ -z "${!option}" ] || need_number "--${option//_/-}" "${!option}"
done

# ---- what a part needs --------------------------------------------------------------------------

if [ -n "$files" ]; then
    echo fairseq_paradec
    printf 'scripts/%s\n' gpu.sh lib.sh
    case $part in
        gates) printf '%s\n' pyproject.toml tests/conftest.py tests/gpu tests/reference \
            tests/support ;;
        bench | bench-ctranslate2 | profile) echo "$pair" ;;
        train) printf '%s\n' "$pair" "$distilled" ;;
    esac
    exit 0
fi
if [ -n "$packages" ]; then
    core='fairseq-fixed omegaconf hydra-core antlr4-python3-runtime bitarray sacremoses subword-nmt
        pyyaml regex tqdm fsspec packaging joblib click'
    lab='sacrebleu portalocker tabulate colorama lxml matplotlib contourpy cycler fonttools
        kiwisolver pillow pyparsing python-dateutil six networkx jsonschema
        jsonschema-specifications referencing rpds-py attrs rouge-score'
    case $part in
        gates) needed="$lab pytest pytest-xdist execnet iniconfig pluggy pygments" ;;
        bench) needed="$lab transformers tokenizers huggingface-hub safetensors filelock typer" ;;
        bench-ctranslate2) needed="$lab ctranslate2" ;;
        train) needed="$lab scikit-learn scipy threadpoolctl narwhals" ;; # fairseq imports them
        *) needed=$lab ;;
    esac
    # shellcheck disable=SC2086 # words
    "$python" -c 'import sys
from importlib.metadata import version
for name in sys.argv[1:]:
    print(f"{name}=={version(name)}")' $core $needed
    exit 0
fi

# ---- before a part ------------------------------------------------------------------------------

case $part in
    gates) need_python fairseq torch pytest xdist ;;
    bench-ctranslate2) need_python fairseq torch sacrebleu matplotlib ctranslate2 ;;
    join) ;;
    *) need_python fairseq torch sacrebleu matplotlib ;;
esac
out=${out:-$root/runs/gpu} work=${work:-$root/runs/gpu-work}
mkdir -p -- "$out" "$work"
out=$(cd -- "$out" && pwd) work=$(cd -- "$work" && pwd)
cd -- "$root"
case $part in
    bench | profile | train) need_dir "$pair" "the small pair" ;;
esac
if [ "$device" = cpu ]; then
    export CUDA_VISIBLE_DEVICES=
elif [ "$part" != join ] && [ "$part" != bench-ctranslate2 ]; then
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        fail "--device: got 'cuda'; allowed: cpu, for torch finds no CUDA device"
fi
case $part in
    profile) minutes=${minutes:-2} ;;
    train) minutes=${minutes:-4} ;;
    *) minutes=${minutes:-5} ;;
esac
end=$((SECONDS + 60 * minutes))

left() { # seconds until the time is up, at least one
    echo $((end - SECONDS > 1 ? end - SECONDS : 1))
}

bounded() { # a command, until the time is up; status 124 says so
    local status=0
    timeout --kill-after=10 "$(left)" "$@" || status=$?
    [ "$status" != 137 ] || [ "$SECONDS" -lt "$end" ] || status=124
    [ "$status" != 124 ] || note "$part: the time is up; the same command goes on"
    return "$status"
}

publish() { # files that are there, to OUT
    local file
    for file in "$@"; do
        [ ! -f "$file" ] || { cp -- "$file" "$out" && note "$out/${file##*/}"; }
    done
}

# ---- the parts ----------------------------------------------------------------------------------

run_gates() {
    local status=0
    bounded "$python" -m pytest tests/gpu -q -p no:cacheprovider --device "$device" \
        --held "$work/gates.jsonl" --table "$work/gpu-gates.json" -n "$processes" \
        --no-header --tb=short "${more[@]}" || status=$?
    [ ! -f "$work/gates.jsonl" ] || note "gates that have held: $(wc -l <"$work/gates.jsonl")"
    publish "$work/gpu-gates.json" "$work/gates.jsonl"
    return "$status"
}

decoders() { # dtype of the drafts of self_draft: sets `compared`
    compared=(--decoder "self_draft${1:+ --drafter-dtype $1}" --decoder hgj
        --decoder 'hgj sliding=hgj --jacobi-window sliding'
        --decoder "assisted=assisted --drafter-path $pair/assistant.pt")
    [ -z "$gad" ] || compared+=(--decoder "gad=gad --drafter-path $gad")
}

bench() { # name, dtype, dtype of the drafts, peers, device
    local peers=()
    decoders "$3"
    [ -z "$4" ] || peers=(--peers "$4")
    bounded "${paradec[@]}" benchmark "${data:-$pair}" --path "$teacher" "${compared[@]}" \
        --decoder 'own beam 5=multiword_beam --beam 5' "${peers[@]}" --dtype "$2" --device "$5" \
        --sentences "${sentences:-64}" --timed 16 --rounds 3 --batch-sizes 8,64 --busy \
        --title "Decoders on ${5^^}: small, $2" --out "$work/$1.json" "${more[@]}" || return
    publish "$work/$1.json" "$work/$1.md" "$work/$1.png"
}

run_bench() {
    local peers=
    if "$python" -c 'import transformers' 2>/dev/null; then
        peers=transformers
    else
        note "transformers is not installed; its searches are left out"
    fi
    # int8 is for CPUs; drafts have another dtype than what verifies.
    if [ "$device" = cpu ]; then
        bench gpu-bench-fp32 fp32 '' "$peers" cpu
        bench gpu-bench-fp16 fp16 bf16 "$peers" cpu
    else
        bench gpu-bench-fp32 fp32 bf16 "$peers" cuda
        bench gpu-bench-fp16 fp16 bf16 "$peers" cuda
    fi
}

run_profile() {
    local drafts=
    [ "$device" = cpu ] || drafts=bf16
    decoders "$drafts"
    bounded "${paradec[@]}" profile launches "${data:-$pair}" --path "$teacher" --decoder 'beam --beam 1' \
        --decoder greedy "${compared[@]}" --device "$device" --sentences "${sentences:-8}" \
        --title "What a pass costs on ${device^^}: small" --out "$work/gpu-profile.json" \
        "${more[@]}" || return
    publish "$work/gpu-profile.json"
}

# A training has two halves, the second at a rate that falls to zero: how many updates fit into its
# time is known from the first. A half that goes on keeps the settings that it began with.
half() { # name of its folder, architecture, updates, checkpoints, seconds, flags of paradec train
    local folder=$work/train/$1 arch=$2 count=$3 saves=$4 seconds=$5 every hours loaders=() began=$SECONDS
    # Four such models train side by side on 16 cores; one process that makes batches takes 0.3 s for
    # one of 32,768 tokens, several times as long as an update on a GPU.
    [ "$device" = cpu ] || loaders=(--num-workers 4)
    shift 5
    mkdir -p -- "${folder%/*}"
    [ -f "$folder.settings" ] || echo "$count $((seconds > 5 ? seconds : 5))" >"$folder.settings"
    read -r count seconds <"$folder.settings"
    every=$((count / saves > 0 ? count / saves : 1))
    hours=$(awk -v seconds="$seconds" 'BEGIN { printf "%.5f", seconds / 3600 }')
    [ -z "$updates" ] || hours=100
    note "train ${folder#"$work/train/"}: $count updates, ${hours} hours at most"
    timeout --kill-after=20 "$(($(left) + 60))" "${paradec[@]}" train "$data" \
        --save-dir "$folder" --preset small --arch "$arch" --average 1 --updates "$count" "$@" \
        --max-tokens "$max_tokens" --update-freq 1 --no-epoch-checkpoints --save-interval 100000 \
        --validate-interval 100000 --save-interval-updates "$every" --keep-interval-updates 1 \
        --stop-time-hours "$hours" "${loaders[@]}" "${more[@]}"
    echo $(($(took "$1") + SECONDS - began)) >"$folder.took"
}

took() { cat -- "$work/train/$1.took" 2>/dev/null || echo 0; } # a half's name: seconds so far

first_half() { # name, what it starts from, seconds
    local arch=$1 begin=(--start-from "$2" --) warm_up=200
    [ -z "$updates" ] || warm_up=1
    [ "$1" != plain ] || { arch=transformer begin=(-- --finetune-from-model "$2"); }
    # Where the time ends it, a checkpoint each 62 updates.
    half "$1/first" "$arch" "${updates:-100000}" "$([ -n "$updates" ] && echo 1 || echo 1600)" "$3" \
        "${begin[@]}" --lr 0.0015 --lr-scheduler inverse_sqrt --warmup-updates "$warm_up" \
        --disable-validation
}

second_half() { # name, seconds
    local arch=$1 count=$updates done wall
    [ "$1" != plain ] || arch=transformer
    if [ -z "$count" ]; then
        last() { { grep -o "\"$1\": \"[0-9.]*\"" "$2" || true; } | tail -n 1 | tr -dc '0-9.'; } # none: too few updates to log
        done=$(last num_updates "$work/train/$1/first/train.log")
        wall=$(last wall "$work/train/$1/first/train.log")
        count=$(awk -v done="$done" -v wall="$wall" -v seconds="$2" 'BEGIN {
            count = int(0.9 * done / (wall > 1 ? wall : 1) * seconds / 3) * 3
            print (count > 30 ? count : 30) }')
    fi
    # fairseq's clock goes on from the first half's.
    half "$1/second" "$arch" "$count" 3 "$(($2 + $(took "$1/first")))" -- \
        --finetune-from-model "$work/train/$1/first/model.pt" --lr 0.0012 \
        --lr-scheduler polynomial_decay
}

run_train() {
    data=${data:-$distilled}
    need_dir "$data" "DATA of train (--data)"
    need_file "$data/raw/valid.de" "validation references"
    local from=${start:-$teacher} cpu=() model=$work/train/$preset.pt
    need_file "$from" "checkpoint to start from (--start)"
    mkdir -p -- "$work/train"
    case $preset in
        ibdecoder_sa | imdecoder)
            if [ -z "$start" ]; then
                # Another process may train the same IBDecoder: one waits for the other.
                exec 8>"$work/train/ibdecoder.lock"
                flock 8
                first_half ibdecoder "$teacher" $((60 * minutes / 3 - 15))
                flock -u 8
                from=$work/train/ibdecoder/first/model.pt
            fi
            ;;
    esac
    exec 8>"$work/train/$preset.lock"
    flock 8
    first_half "$preset" "$from" $(($(left) * 2 / 5 - 15))
    second_half "$preset" $(($(left) - 45)) # start, evaluation and the copy take their part
    cp -- "$work/train/$preset/second/train.log" "$out/$preset.log"
    "${paradec[@]}" shrink --max-mb 40 "$work/train/$preset/second/model.pt" "$model"
    rm -f -- "$out/$preset.pt".[0-9]*
    split --bytes=15M --numeric-suffixes -- "$model" "$out/$preset.pt."
    note "$out/$preset.pt.00 and so on: scripts/gpu.sh join --out makes them whole"
    [ "$device" = cuda ] || cpu=(--cpu)
    "${paradec[@]}" benchmark "$data" --preset quality --path "$teacher" --path "$model" \
        --subset valid --reference "$data/raw/valid.de" --sweep beam=1 --title "Trained on ${device^^}: $preset" \
        --out "$work/$preset.json" -- --max-tokens 16000 "${cpu[@]}"
    publish "$work/$preset.json"
}

run_join() {
    local first model
    for first in "$out"/*.pt.00; do
        [ -f "$first" ] || fail "OUT: got '$out', which has no pieces (*.pt.00); give --out"
        model=${first%.00}
        cat -- "$model".[0-9][0-9] >"$model.partial"
        mv -- "$model.partial" "$model"
        note "$model"
    done
}

case $part in
    gates) run_gates ;;
    bench) run_bench ;;
    bench-ctranslate2) bench gpu-bench-ctranslate2 fp32 '' ctranslate2 cpu ;;
    profile) run_profile ;;
    train) run_train ;;
    join) run_join ;;
esac
exit
}
