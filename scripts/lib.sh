# Sourced by every script here: errors, arguments, Python. Not a command of its own.
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
