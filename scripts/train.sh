#!/usr/bin/env bash
# Train a translation model with fairseq-train and the plugin; average its last checkpoints.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/train.sh DATA --save-dir DIR [options] [-- fairseq-train's flags]

Trains with fairseq-train and the plugin, then averages the last checkpoints. A CUDA device is used
if there is one (in half precision), else the CPU; CUDA_VISIBLE_DEVICES= keeps it on the CPU. A run
that was stopped or killed goes on from its newest whole checkpoint by the same command.

input:
    DATA                a folder that fairseq-preprocess made (paths have no ':' in them)
output:
    DIR/model.pt        the average, written last: use this one
    DIR/checkpoint*.pt  fairseq's own, with the optimizer's state
    DIR/train.log       what fairseq says
    DIR/settings.txt    the flags of the run and checksums of its data; once there is a checkpoint,
                        the same command must give the same

options:
    --preset NAME       model size and training settings (default: base)
                          tiny          4+4 layers, d 128, 38 epochs
                          small         6+6 layers, d 256, ffn 1024, 12 epochs
                          iwslt         6+6 layers, d 512, ffn 1024, 40 epochs
                          base          6+6 layers, d 512, ffn 2048, 100,000 updates
                          big           6+6 layers, d 1024, ffn 4096, 300,000 updates
                          deep-shallow  base with 12 encoder layers and 1 decoder layer
    --arch NAME         (default: transformer); the preset's sizes are given as flags. block_nat is
                        a drafter, with settings of its own (Xia et al. 2022: glancing, a soft copy,
                        blocks of 25 tokens, big 30; iwslt 50,000 updates, others 300,000. tiny 60
                        epochs without the first two, blocks of 8). It takes the sizes of the
                        verifier that -- --encoder-from FILE names, and block_nat_fast, of 4 decoder
                        layers, its encoder, too. shallow_decoder, of one decoder layer on that encoder, drafts
                        for --decoding assisted (tiny 2,500 updates). Reordered decoders are ibdecoder, ibdecoder_sa, imdecoder,
                        sa_transformer, transformer_r2l, transformer_both_ends (Zhang et al. 2020,
                        trained like any model), double_token, double_token_l2r and double_token_r2l
                        (Imamura and Sumita 2020; base and big with their settings, 200,000
                        updates). With _tiny, _iwslt or _big in the name, that is the size.
                        -- --encoder-from FILE starts from the encoder of a Transformer of the same
                        size. blockwise_transformer
                        (Stern et al. 2018; tiny 8 epochs) puts heads on the Transformer that
                        -- --base-path FILE names; with --fine-tune-base that is trained, too
                        (tiny 10 epochs), and FILE may have heads. image_transformer (Stern et al. 2018, section 7.2; tiny 20
                        epochs) writes images, and blockwise_image_transformer puts heads on it:
                        DATA is a folder of paradec data images then. In such a
                        folder every model is trained by --task image_super_resolution
    --epochs N          how long: a checkpoint is written after each epoch
    --updates N         or so: one more after every hundredth of the updates
    --average N         the last N checkpoints are kept and averaged (default: tiny 8, others 5)
    --seed N            (default: 1)
    --threads N         of each process on a CPU (default: the cores shared out evenly)
    --processes N       data-parallel processes; each takes a part of every batch (default: 1)
    --smoke             a try-out: 20 updates on batches of 128 tokens (longer sentences are left out)
                        or of one image, 2 checkpoints averaged; without --save-dir in a temporary
                        folder
    --python PYTHON     default: .venv/bin/python in this checkout, else python3
    -- FLAGS            any other flags of fairseq-train; they win over the preset's

examples:
    scripts/train.sh data-bin/multi30k.en-de --save-dir checkpoints/tiny --preset tiny
    scripts/train.sh data-bin/multi30k.en-de --save-dir checkpoints/drafter --preset tiny \
        --arch block_nat_fast -- --encoder-from checkpoints/tiny/model.pt
    scripts/train.sh data-bin/multi30k-distilled.en-de --save-dir checkpoints/ibdecoder \
        --preset tiny --arch ibdecoder
    scripts/train.sh data-bin/multi30k.en-de --save-dir checkpoints/heads --preset tiny \
        --arch blockwise_transformer -- --base-path checkpoints/tiny/model.pt
    scripts/train.sh data-bin/multi30k-distilled.en-de --save-dir checkpoints/heads-tuned \
        --preset tiny --arch blockwise_transformer -- --fine-tune-base \
        --base-path checkpoints/heads/model.pt
    scripts/train.sh data-bin/photographs --save-dir checkpoints/images --preset tiny \
        --arch image_transformer
The settings of the presets are in scripts/train_settings.sh.
HELP
}

{ # read to its end before anything runs, so that the file may change while a model is trained
data='' save_dir='' preset=base arch=transformer epochs='' updates='' average='' seed=1
threads='' processes=1 smoke=''
more=() positional=()
while [ $# -gt 0 ]; do
    case $1 in
        --save-dir | --preset | --arch | --epochs | --updates | --average | --seed | --threads | \
            --processes | --python)
            need_value "$@"
            name=${1#--}
            declare "${name//-/_}=$2"
            shift 2
            ;;
        --smoke)
            smoke=1
            shift
            ;;
        --)
            shift
            more=("$@")
            break
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        -*) fail "unknown option: $1 (see --help; fairseq's own flags come after --)" ;;
        *)
            positional+=("$1")
            shift
            ;;
    esac
done
[ ${#positional[@]} -eq 1 ] || fail "got ${#positional[@]} paths; needed: DATA (see --help)"
data=${positional[0]}

need_choice --preset "$preset" tiny small iwslt base big deep-shallow
for option in epochs updates average threads; do
    [ -z "${!option}" ] || need_number "--$option" "${!option}"
done
need_number --seed "$seed"
need_number --processes "$processes"
[ -z "$epochs" ] || [ -z "$updates" ] || fail "--epochs and --updates: only one of them"
[ -z "$smoke" ] || [ -z "$epochs$updates$average" ] ||
    fail "--smoke sets --epochs, --updates and --average itself"
[ -n "$save_dir$smoke" ] || fail "--save-dir is missing: where the model is written"
[[ $data != *:* ]] || fail "DATA: got '$data'; allowed: a path without ':' (fairseq splits it there)"
need_dir "$data" "DATA"
dicts=("$data"/dict.*.txt)
[ ${#dicts[@]} -eq 2 ] || fail "DATA: got '$data'; allowed: a folder with two dict.LANG.txt"
need_python fairseq torch
image= # how many tokens an image has, if DATA holds images
[ ! -f "$data/sizes.json" ] || image=$("$python" -c 'import json, sys
size = json.load(open(sys.argv[1]))["hr"]
print(size["height"] * size["width"] * size["channels"] + 1)' "$data/sizes.json" 2>/dev/null) ||
    fail "DATA: got '$data', whose sizes.json cannot be read; allowed: a folder of" \
        "paradec data images"
[[ -n $image || $arch != *image_transformer* ]] ||
    fail "--arch: got '$arch'; allowed: it with images, which DATA ($data) does not hold (no" \
        "sizes.json)"
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
[ "$gpus" = 0 ] || [ "$processes" -le "$gpus" ] ||
    fail "--processes: got '$processes'; allowed: at most $gpus, the number of CUDA devices"

# ---- the settings -------------------------------------------------------------------------------

# shellcheck source=scripts/train_settings.sh
. "$root/scripts/train_settings.sh"
encoder_from=$(value_of --encoder-from '')
[ -z "$encoder_from" ] || need_file "$encoder_from" "$encoder_of (--encoder-from)"
[[ $arch != block_nat_fast && $arch != shallow_decoder ]] || [ -n "$encoder_from" ] ||
    fail "--encoder-from is missing after --: the verifier whose encoder $arch shares"
verifier= # whose sizes the model has
[[ $arch != block_nat* && $arch != shallow_decoder ]] || verifier=$encoder_from
base_path=$(value_of --base-path '')
[ -z "$base_path" ] || need_file "$base_path" "base (--base-path)"
average=${average:-$last}
every=$((length[1] / 100))
if [ -n "$smoke" ]; then
    length=(updates 20) every=10 average=2 batch=128
fi

# A batch is shared among processes, and summed up from pieces that fit into memory. fairseq wants
# room for its longest sentence, 1024 tokens or an image, in each.
piece=4096
[ "$gpus" = 0 ] || piece=8192
update_freq=$(((batch + processes * piece - 1) / (processes * piece)))
max_tokens=$((batch / (processes * update_freq)))
positions=${image:-1024}
[ -z "$smoke" ] || positions=${image:-128}
[ "$max_tokens" -ge "$positions" ] || max_tokens=$positions

flags=() settings=()
add() { # a flag of fairseq-train with its value
    flags+=("$@")
    settings+=("${*@Q}")
}
add --arch "$arch"
[ -z "$image" ] || add --task image_super_resolution
if [ -n "$own_size" ]; then
    : # the architecture's name says it
elif [ -z "$base_path$verifier" ]; then # else that model's
    for side in encoder decoder; do
        layers=${size[0]}
        [ "$side" = encoder ] || layers=${size[1]}
        add "--$side-layers" "$layers"
        add "--$side-embed-dim" "${size[2]}"
        add "--$side-ffn-embed-dim" "${size[3]}"
        add "--$side-attention-heads" "${size[4]}"
    done
fi
if [ -n "$base_path" ]; then
    : # as in that model
elif cmp -s -- "${dicts[@]}"; then
    add --share-all-embeddings
else
    add --share-decoder-input-output-embed # source and target have dictionaries of their own
fi
add --optimizer adam
for ((i = 0; i < ${#training[@]}; i += 2)); do
    add "${training[@]:i:2}"
done
for flag in "${switches[@]}"; do
    add "$flag"
done
add --max-tokens "$max_tokens"
add --update-freq "$update_freq"
add --seed "$seed"
if [ "${length[0]}" = epochs ]; then
    add --max-epoch "${length[1]}"
else
    add --max-update "${length[1]}"
    add --save-interval-updates "$((every > 0 ? every : 1))"
    add --keep-interval-updates "$average"
fi
add --keep-last-epochs "$average" # fairseq gives no other name to one at the end of an epoch
if [ -n "$smoke" ]; then
    if [ -z "$image" ]; then # images are of one length
        add --max-source-positions "$positions"
        add --max-target-positions "$positions"
        add --skip-invalid-size-inputs-valid-test
    fi
    add --max-valid-steps 2
fi
if [ "$gpus" = 0 ]; then add --cpu; else add --fp16; fi
add --distributed-world-size "$processes"
[ ${#more[@]} -eq 0 ] || add "${more[@]}"
[ -z "$encoder_from" ] || settings+=("ENCODER $(sha256sum <"$encoder_from" | cut -c-16)")
[ -z "$base_path" ] || settings+=("BASE $(sha256sum <"$base_path" | cut -c-16)")
settings+=("--average $average")

# ---- the folder ---------------------------------------------------------------------------------

temporary=
if [ -z "$save_dir" ]; then
    temporary=$(mktemp -d)
    save_dir=$temporary
    trap 'rm -rf -- "$temporary"' EXIT
fi
case $save_dir in -*) save_dir=./$save_dir ;; esac
mkdir -p -- "$save_dir"
# The lock passes to the training processes: no other process writes here while one runs.
exec 9>"$save_dir/.lock"
flock -n 9 || {
    note "waiting for another process that trains in $save_dir"
    flock -w 10 9 || fail "--save-dir: got '$save_dir', in which another process trains"
}
# Older runs have the folder's path instead of the checksums of what is in it.
same_data="DATA $data"
grep -qsxF -- "$same_data" "$save_dir/settings.txt" ||
    same_data=$(cd -- "$data" >/dev/null && shopt -s nullglob &&
        sha256sum -- dict.*.txt sizes*.json {train,valid}*.{bin,idx} | sed -E 's/^(.{16})\S* .(.*)/DATA \2 \1/')
printf '%s\n' "$same_data" "${settings[@]}" >"$save_dir/settings.new"
checkpoints=("$save_dir"/checkpoint*.pt)
if [ ! -e "${checkpoints[0]}" ] && [ ! -e "$save_dir/model.pt" ]; then
    mv -- "$save_dir/settings.new" "$save_dir/settings.txt" # nothing is lost by other settings
elif [ ! -f "$save_dir/settings.txt" ]; then
    rm -- "$save_dir/settings.new"
    fail "--save-dir: $save_dir has checkpoints of a run that this script did not start"
else
    difference=$(diff -- "$save_dir/settings.txt" "$save_dir/settings.new" |
        sed -n 's/^< /before: /p; s/^> /now: /p' | paste -sd '|' | sed 's/|/; /g') || true
    rm -- "$save_dir/settings.new"
    [ -z "$difference" ] || fail "--save-dir: the run in $save_dir has other settings: $difference"
fi
if [ -f "$save_dir/model.pt" ]; then
    note "already trained: $save_dir/model.pt"
    exit 0
fi

# ---- training -----------------------------------------------------------------------------------

pids=()
stop() { # exit status
    trap '' INT TERM
    [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    if [ -n "$temporary" ]; then
        note "stopped"
    else
        note "stopped; checkpoints are kept in $save_dir, and the same command goes on"
    fi
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

log=$save_dir/train.log
log_is=" (log: $log)"
[ -z "$temporary" ] || log_is= # it goes with the folder
done_updates=0
[ ! -e "${checkpoints[0]}" ] ||
    done_updates=$("${paradec[@]}" resume -- "$save_dir")
if [ "${length[0]}" = updates ] && [ "$done_updates" -ge "${length[1]}" ]; then
    note "[1/2] training was finished: $done_updates updates" # fairseq would do one more
else
    [ -n "$threads" ] || threads=$(($(nproc) / processes))
    export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
    # Threads that spin while they wait slow each other down sixfold where cores are shared.
    export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
    languages=() subsets=("$data"/train.*-*.*.idx)
    if [ -f "${subsets[0]}" ]; then # fairseq would take the first name in the folder
        pair=${subsets[0]##*/train.}
        pair=${pair%%.*} # en-de
        languages=(--source-lang "${pair%-*}" --target-lang "${pair#*-}")
    fi
    command=("$python" -P -m fairseq_cli.train "$data" --user-dir "$root/fairseq_paradec"
        "${languages[@]}" --save-dir "$save_dir" --no-progress-bar --log-format simple
        --log-interval 50 "${flags[@]}")
    note "[1/2] training: $preset, ${length[1]} ${length[0]}, $done_updates updates done$log_is"
    printf '==== %s: %s\n' "$(date -u +%FT%TZ)" "${command[*]@Q}" >>"$log"
    if [ "$gpus" = 0 ] && [ "$processes" -gt 1 ]; then
        # fairseq's own spawning needs CUDA: one process for each rank.
        port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
        command+=(--distributed-backend gloo --ddp-backend legacy_ddp --distributed-no-spawn
            --distributed-init-method "tcp://localhost:$port")
        for ((rank = 0; rank < processes; rank++)); do
            "${command[@]}" --distributed-rank "$rank" >>"$log" 2>&1 &
            pids+=("$!")
        done
    else
        "${command[@]}" >>"$log" 2>&1 &
        pids=("$!")
    fi
    status=0
    for pid in "${pids[@]}"; do # in order of ending; if one fails, the others would wait for ever
        ended=0
        wait -n || ended=$?
        if [ "$ended" = 127 ]; then # it has forgotten one that ended before: ask by number
            ended=0
            for early in "${pids[@]}"; do
                kill -0 "$early" 2>/dev/null || wait "$early" || ended=$?
            done
        fi
        if [ "$ended" != 0 ]; then
            [ "$status" != 0 ] || status=$ended # the others end by the signal
            kill -TERM "${pids[@]}" 2>/dev/null || true
        fi
    done
    if [ "$status" != 0 ]; then
        tail -n 20 -- "$log" >&2
        note "fairseq-train failed with status $status$log_is"
        exit 1
    fi
fi

note "[2/2] averaging the last $average checkpoints"
"${paradec[@]}" average --last "$average" --out="$save_dir/model.pt" \
    -- "$save_dir" &
pids=("$!")
wait "${pids[0]}"
[ -n "$temporary" ] || note "done: $save_dir/model.pt"
exit 0
}
