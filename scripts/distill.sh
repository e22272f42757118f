#!/usr/bin/env bash
# Sequence-level knowledge distillation: a data folder whose targets are a teacher's translations.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/distill.sh DATA --path TEACHER.pt[:TEACHER2.pt...] [options] DEST

Translates the training sources with beam search (fairseq's outputs, by faster passes where there is
one plain Transformer) and makes a data folder with the translations as targets (Kim and Rush 2016),
ready for fairseq-train.

input:
    DATA                a folder that fairseq-preprocess made
    --path FILES        the teacher's checkpoint; several with ':' between them are an ensemble
output:
    DEST/               dictionaries, the distilled subset, and DATA's other subsets unchanged
    DEST/raw/           the raw text of these, if DATA/raw/ has it
    DEST/text/          the pairs as text (BPE tokens), one line per sentence of the subset, in
                        its order. A sentence without translation (empty, or too long for the
                        teacher) has an empty line; left-out.txt lists these (number from 0,
                        tokens, source), and the binarised subset goes without them
    DEST/parts/         finished batches. The same command goes on where it was stopped or killed
    DEST/distilled.json settings and counts, written last

options:
    --subset NAME       whose targets are replaced (default: train)
    --beam N            (default: 5)
    --lenpen X          (default: 1)
    --max-tokens N      source tokens in a batch, padding included (default: 2000; GPUs
                        are faster with more)
    --batch-size N      sentences in a batch
    --device cpu|cuda   (default: cpu)
    --fp16              translate in half precision
    --smoke             only the first 64 sentences
    --processes N       local processes, each of one thread (default: 1); on cuda each takes the
                        next GPU
    --num-shards N      pieces of work (default: one for each process)
    --shard-id I        do piece I only, from 0 up
    --merge             do no piece: check them all and make the data folder
    --python PYTHON     default: .venv/bin/python in this checkout, else python3

Results do not depend on the number of shards or processes, nor on interruptions.
One command does everything, the last step too:
    scripts/distill.sh DATA --path teacher.pt --processes 4 DEST
On many machines with a shared disk; add --merge to the same command once all are done:
    scripts/distill.sh DATA --path teacher.pt --num-shards 8 --shard-id 3 DEST
    torchrun --nproc-per-node 4 --no-python scripts/distill.sh DATA --path teacher.pt DEST
    sbatch --array=0-7 --wrap 'scripts/distill.sh DATA --path teacher.pt DEST'
torchrun's processes take --num-shards pieces in turn, or one each. A task of a SLURM array takes the
piece of its number; to do some of 8 again: sbatch --array=2,5 --wrap '... --num-shards 8 ...'.
HELP
}

data='' dest='' path='' subset=train beam=5 lenpen=1 max_tokens='' batch_size=''
num_shards='' shard_id='' processes='' device=cpu merge=''
flags=() # for the Python step
positional=()
while [ $# -gt 0 ]; do
    case $1 in
        --path | --subset | --beam | --lenpen | --max-tokens | --batch-size | --num-shards | \
            --shard-id | --processes | --device | --python)
            need_value "$@"
            [ -n "$2" ] || fail "$1: got ''; allowed: see --help"
            name=${1#--}
            declare "${name//-/_}=$2"
            shift 2
            ;;
        --fp16 | --smoke)
            flags+=("$1")
            shift
            ;;
        --merge)
            merge=1
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        -*) fail "unknown option: $1 (see --help; a path like that can be given as ./$1)" ;;
        *)
            positional+=("$1")
            shift
            ;;
    esac
done
[ ${#positional[@]} -eq 2 ] || fail "got ${#positional[@]} paths; needed: DATA and DEST (see --help)"
data=${positional[0]} dest=${positional[1]}

[ -n "$path" ] || fail "--path is missing: the teacher's checkpoint"
for name in DATA DEST; do
    value=${name,,}
    [[ ${!value} != *:* ]] ||
        fail "$name: got '${!value}'; allowed: a path without ':' (fairseq splits it there)"
done
need_dir "$data" "DATA"
mapfile -d : -t teachers < <(printf '%s' "$path")
for teacher in "${teachers[@]}"; do
    need_file "$teacher" "teacher (--path)"
done
need_number --beam "$beam"
[[ $lenpen =~ ^-?([0-9]+\.?[0-9]*|\.[0-9]+)$ ]] || fail "--lenpen: got '$lenpen'; allowed: a number"
[ -n "$max_tokens$batch_size" ] || max_tokens=2000
[ -z "$max_tokens" ] || need_number --max-tokens "$max_tokens"
[ -z "$batch_size" ] || need_number --batch-size "$batch_size"
[ -z "$num_shards" ] || need_number --num-shards "$num_shards"
[ -z "$processes" ] || need_number --processes "$processes"
need_choice --device "$device" cpu cuda

# Who does what: this command's processes are the workers from number `first` on, of `workers` in
# all; worker w takes the shards w, w + workers, ...
first=0 workers=${processes:-1} gpu=0
shards_flag=--processes # what gives their number, for the message
shards_given=$num_shards
if [ -n "$shard_id" ]; then
    [ -n "$num_shards" ] || fail "--shard-id needs --num-shards: of how many"
    [ -z "$processes" ] || fail "--processes does all shards; leave it out beside --shard-id"
    first=$shard_id workers=$num_shards
elif [ -z "$processes$merge" ] && [ -n "${RANK:-}" ] && [ -n "${WORLD_SIZE:-}" ]; then
    shards_flag=WORLD_SIZE
    first=$RANK workers=$WORLD_SIZE gpu=${LOCAL_RANK:-0}
elif [ -z "$processes$merge" ] && [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    shards_flag=SLURM_ARRAY_TASK_COUNT
    shard_id=$SLURM_ARRAY_TASK_ID
    num_shards=${num_shards:-${SLURM_ARRAY_TASK_COUNT:-}}
    need_number "--num-shards (or SLURM_ARRAY_TASK_COUNT)" "$num_shards"
    first=$shard_id workers=$num_shards
fi
if [ -n "$shard_id" ]; then
    case $shard_id in
        *[!0-9]* | 0?*) outside=1 ;;
        *) outside=$((shard_id >= num_shards)) ;;
    esac
    [ "$outside" = 0 ] || fail "--shard-id (or SLURM_ARRAY_TASK_ID): got '$shard_id';" \
        "allowed: 0 to $((num_shards - 1)), as there are $num_shards shards"
fi
[ -z "$shards_given" ] || shards_flag=--num-shards
if [ -n "$merge" ]; then
    need_file "$dest/parts/settings.json" "parts to merge (DEST)"
else
    num_shards=${num_shards:-$workers}
fi
need_python fairseq torch tqdm

export LOGLEVEL=${LOGLEVEL:-WARNING} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
settings=("--path=$path" "--subset=$subset" --beam "$beam" "--lenpen=$lenpen" "${flags[@]}")
[ -z "$max_tokens" ] || settings+=(--max-tokens "$max_tokens")
[ -z "$batch_size" ] || settings+=(--batch-size "$batch_size")
[ -z "$num_shards" ] || settings+=(--num-shards "$num_shards" "--shards-flag=$shards_flag")
"${paradec[@]}" distill parts "${settings[@]}" -- "$data" "$dest"
if [ -f "$dest/distilled.json" ]; then
    note "already made: $dest"
    exit 0
fi

pids=()
stop() { # exit status; what is finished stays
    trap '' INT TERM
    [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    note "stopped; finished batches are kept, and the same command goes on"
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

if [ -z "$merge" ]; then
    note "[1/2] translating $subset of $data with beam $beam"
    for ((i = 0; i < ${processes:-1}; i++)); do
        mapfile -t shards < <(seq "$((first + i))" "$workers" "$((num_shards - 1))")
        [ ${#shards[@]} -gt 0 ] || continue
        "${paradec[@]}" distill shard --path="$path" --device "$device" \
            --worker "$((gpu + i))" -- "$data" "$dest" "${shards[@]}" &
        pids+=("$!")
    done
    status=0
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    [ "$status" = 0 ] || exit "$status"
    if [ "${processes:-1}" -lt "$workers" ]; then
        note "done: this command's shards; --merge makes the data folder when all are finished"
        exit 0
    fi
fi
note "[2/2] checking and merging into $dest"
"${paradec[@]}" distill merge -- "$data" "$dest" &
pids=("$!")
wait "${pids[0]}"
