# Sourced by every script here: errors, arguments, folders, Python. Not a command of its own.
# shellcheck shell=bash

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

# Makes DEST, or takes it up where this script left it; for one process at a time. What a user has
# there is never touched.
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

# The interpreter of every step: --python of the script, else the checkout's own, else the PATH's.
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || [ -n "${PYTHON:-}" ] || python=python3

need_python() { # the modules that the script runs
    command -v "$python" >/dev/null || fail "no such Python: $python (run make setup, or give --python)"
    local missing
    missing=$("$python" -c 'import importlib.util as u, sys
print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))' "$@") ||
        fail "$python does not run"
    [ -z "$missing" ] || fail "$python has no module $missing (run make setup, or give --python)"
}

# A command whose chatter goes to a file, of which the end is shown if it fails.
quietly() { # log file, then the command
    local log=$1
    shift
    "$@" >>"$log" 2>&1 || {
        tail -n 20 -- "$log" >&2
        fail "failed: $* (log: $log)"
    }
}
