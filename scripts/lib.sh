# Sourced by every script here: errors, arguments, folders, Python. Not a command of its own.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source it

# The checkout, and the name that errors are signed with.
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
script=$(basename -- "$0" .sh)

fail() {
    echo "$script: $*" >&2
    exit 2
}

note() {
    echo "$script: $*" >&2
}

need_file() { # path, what it is
    [ -f "$1" ] || fail "missing $2: $1"
}

need_dir() { # path, what it is
    [ -d "$1" ] || fail "missing $2: $1"
}

need_value() { # "$@" of the option in hand: the option, then its value
    [ $# -ge 2 ] || fail "$1 needs a value"
}

need_number() { # option, value: a whole number from 1 up
    case $2 in
        '' | *[!0-9]* | 0*) fail "$1: got '$2'; allowed: a whole number from 1 up" ;;
    esac
}

need_choice() { # option, value, then what is allowed
    local option=$1 value=$2 choice
    shift 2
    for choice in "$@"; do
        [ "$value" != "$choice" ] || return 0
    done
    fail "$option: got '$value'; allowed: $*"
}

need_no_colon() { # option, path
    case $2 in *:*) fail "$1: got '$2'; allowed: a path without ':', at which fairseq splits paths" ;; esac
}

# Makes DEST, or continues where this script stopped; for one process at a time. Other files there
# are never touched.
claim_dest() { # DEST
    local other
    need_no_colon DEST "$1"
    if [ -e "$1" ] && [ ! -e "$1/settings" ]; then
        [ -d "$1" ] || fail "DEST: got '$1', a file; allowed: a folder"
        other=$(find "$1" -mindepth 1 -maxdepth 1 ! -name .lock ! -name .work ! -name .done \
            ! -name download -print -quit)
        [ -z "$other" ] || fail "DEST: got '$1', which holds something else (${other##*/});" \
            "allowed: a new folder, or one that this script made"
    fi
    mkdir -p -- "$1"
    exec 9>>"$1/.lock"
    flock -n 9 || fail "another run is at work in $1"
}

# What DEST is made from and how, a line "KEY VALUE" each ("input CHECKSUM FILE" for files). Another
# run must agree with what is finished there.
settle() { # DEST, file with this run's settings
    local difference
    if [ -e "$1/settings" ] && [ -n "$(ls -A -- "$1/.done" 2>/dev/null)" ]; then
        difference=$(awk '{ key = $1 == "input" ? $3 : $1 }
            NR == FNR { was[key] = $0; next }
            was[key] != $0 { print "was " was[key] ", is now " $0; exit }' "$1/settings" "$2")
        cmp -s -- "$1/settings" "$2" || fail "$1 was made otherwise" \
            "(${difference:-other input files}); give another DEST, or remove that one"
    else
        mv -- "$2" "$1/settings"
    fi
}

# Reads a command line into variables: --save-dir X is save_dir=X, a switch is 1, what follows -- is
# `more`, and paths are `positional`.
parse_options() { # options with a value, switches (both as "--one --two"), then the script's "$@"
    local valued=" $1 " switches=" $2 " name
    shift 2
    more=() positional=()
    while [ $# -gt 0 ]; do
        case $1 in
            --)
                shift
                more=("$@")
                return
                ;;
            -h | --help)
                usage
                exit 0
                ;;
            -*)
                name=${1#--}
                [[ $name != *[!a-z-]* ]] || valued='' switches=''
                if [[ $valued == *" $1 "* ]]; then
                    need_value "$@"
                    [ -n "$2" ] || fail "$1: got ''; allowed: see --help"
                    declare -g "${name//-/_}=$2"
                    shift 2
                elif [[ $switches == *" $1 "* ]]; then
                    declare -g "${name//-/_}=1"
                    shift
                else
                    fail "unknown option: $1 (see --help; fairseq's own flags come after --)"
                fi
                ;;
            *)
                positional+=("$1")
                shift
                ;;
        esac
    done
}

# The interpreter of every step: --python of the script, else the checkout's own, else the PATH's.
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || [ -n "${PYTHON:-}" ] || python=python3

take_python() { # "$@" of a script that is a front of a command: --python is ours, `words` the rest
    words=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        if [ "$1" = --python ]; then
            need_value "$@"
            python=$2
            shift
        else
            words+=("$1")
        fi
        shift
    done
    words+=("$@")
}

need_python() { # the modules that the script runs; then ${paradec[@]} is this checkout's paradec
    command -v "$python" >/dev/null || fail "no such Python: $python (run make setup, or give --python)"
    local missing
    missing=$("$python" -c 'import importlib.util as u, sys
print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))' "$@") ||
        fail "$python does not run"
    [ -z "$missing" ] || fail "$python has no module $missing (run make setup, or give --python)"
    # env leaves its process to Python: a signal to the step's process id reaches it.
    paradec=(env "PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}" "$python" -P -m fairseq_paradec)
}

# Runs a command with its output in a file, and shows the end of the file if it fails.
quietly() { # log file, then the command
    local log=$1
    shift
    "$@" >>"$log" 2>&1 || {
        tail -n 20 -- "$log" >&2
        fail "failed: $* (log: $log)"
    }
}

# ---- recipes of several steps (train_drafter.sh, train_blockwise.sh, train_reordered.sh) --------
# Their options are in variables of the same names.

need_recipe_options() { # mistakes that all recipes name alike
    local option
    [ ${#positional[@]} -eq 1 ] || fail "got ${#positional[@]} paths; needed: DATA (see --help)"
    data=${positional[0]}
    need_choice --preset "$preset" tiny small iwslt base big
    for option in epochs updates threads; do
        [ -z "${!option}" ] || need_number "--$option" "${!option}"
    done
    need_number --seed "$seed"
    need_number --processes "$processes"
    [ -z "$epochs" ] || [ -z "$updates" ] || fail "--epochs and --updates: only one of them"
    [ -z "$smoke" ] || [ -z "$epochs$updates" ] || fail "--smoke sets --epochs and --updates itself"
    [ -n "$save_dir$smoke" ] || fail "--save-dir is missing: where everything is written"
    need_no_colon --save-dir "$save_dir"
    need_no_colon DATA "$data"
    need_dir "$data" "DATA"
}

need_teacher() { # an ensemble has ':' between its files
    local files file
    mapfile -d : -t files < <(printf '%s' "$teacher")
    for file in "${files[@]}"; do
        need_file "$file" "teacher (--teacher)"
    done
}

# Makes --save-dir, or a temporary folder, and locks it for this process and its steps.
open_save_dir() {
    device=$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
    temporary=
    if [ -z "$save_dir" ]; then
        temporary=$(mktemp -d)
        save_dir=$temporary
        trap 'rm -rf -- "$temporary"' EXIT
    fi
    case $save_dir in -*) save_dir=./$save_dir ;; esac
    mkdir -p -- "$save_dir"
    # The lock passes to the steps: no other process works here while one of them runs.
    exec 7>"$save_dir/.lock"
    flock -n 7 || fail "--save-dir: got '$save_dir', in which another process works"
    step= try_out=()
    [ -z "$smoke" ] || try_out=(--smoke)
    trap 'stop_recipe 130' INT
    trap 'stop_recipe 143' TERM
}

stop_recipe() { # exit status
    trap '' INT TERM
    if [ -n "$step" ]; then
        kill -TERM "$step" 2>/dev/null || true
        wait "$step" 2>/dev/null || true
    fi
    if [ -n "$temporary" ]; then
        note "stopped"
    else
        note "stopped; what was made is kept in $save_dir, and the same command goes on"
    fi
    exit "$1"
}

run() { # a step of a recipe
    local status=0
    "$@" &
    step=$!
    wait "$step" || status=$?
    step=
    [ "$status" = 0 ] || {
        note "stopped by an error in paradec ${*:$((${#paradec[@]} + 1)):1}"
        exit "$status"
    }
}

train() { # data, folder, then more of paradec train
    local settings=(--preset "$preset" --seed "$seed" --processes "$processes")
    [ -z "$threads" ] || settings+=(--threads "$threads")
    run "${paradec[@]}" train "$1" --save-dir "$2" "${settings[@]}" "${try_out[@]}" "${@:3}"
}

length() { # sets `long`: how long the last model is trained, if the user says it
    long=()
    [ -z "$epochs" ] || long=(--epochs "$epochs")
    [ -z "$updates" ] || long=(--updates "$updates")
}

distill() { # data, folder, then more of paradec distill
    local settings=(--device "$device" --processes "$processes")
    [ "$device" = cpu ] || settings+=(--max-tokens 16000)
    LOGLEVEL=${LOGLEVEL:-WARNING} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} \
        run "${paradec[@]}" distill "$1" "$2" "${settings[@]}" "${try_out[@]}" "${@:3}"
}

use_threads() { # for a step that asks for none itself
    export OMP_NUM_THREADS=${threads:-${OMP_NUM_THREADS:-$(nproc)}}
    export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
}
