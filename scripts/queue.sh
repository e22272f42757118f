#!/usr/bin/env bash
# Run a list of experiments, one after the other; finished ones are not repeated.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'HELP'
usage: scripts/queue.sh [QUEUE] [options]
       scripts/queue.sh --pause | --continue [--runs DIR]

Runs the experiments of a file in their order. A failure does not stop the rest. Stopped (Ctrl-C) or
killed, the same command goes on with what is not done. An experiment outlives its queue if that is
killed or its terminal closed, and is marked as it ends.

input:
    QUEUE               (default: scripts/experiments.queue) a line for each experiment:
                            NAME  COMMAND
                            NAME[after=OTHER,...]  COMMAND
                        NAME is letters, digits and ._-; COMMAND is for bash and runs in the
                        checkout's root; with after= it runs only if these earlier ones are done.
                        Empty lines and lines that start with # do not count
output:
    DIR/NAME/log        what the command says, of all its runs
    DIR/NAME/done       it ended with status 0: command and seconds
    DIR/NAME/failed     it did not: status and seconds; the next start tries again
    a table of names, states and minutes (of the last run), and status 0 if all are done, else 1

options:
    --runs DIR          (default: runs in this checkout)
    --list              only the table
    --only NAME         only this experiment
    --rerun NAME        run this experiment again though it is done; needed if its command changed
    --keep NAME         where its command changed and what it makes did not, as by another name of a
                        flag: mark it as done by the present command. It runs nothing; NAME may be a
                        pattern, such as 'papers-*'
    --pause             stop what is running, all its processes, until
    --continue          lets them go on (to measure something in between)

Two queues on the same DIR share the work: an experiment runs in one of them.
HELP
}

{ # read to its end before anything runs, so that the file may change while experiments run
queue='' runs=$root/runs only='' rerun='' keep='' mode=run
while [ $# -gt 0 ]; do
    case $1 in
        --runs | --only | --rerun | --keep)
            need_value "$@"
            declare "${1#--}=$2"
            shift 2
            ;;
        --list | --pause | --continue)
            mode=${1#--}
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        -*) fail "unknown option: $1 (see --help; a path like that can be given as ./$1)" ;;
        *)
            [ -z "$queue" ] || fail "got two queues, '$queue' and '$1'; allowed: one"
            queue=$1
            shift
            ;;
    esac
done
case $runs in -*) runs=./$runs ;; esac

is_running() { # folder of an experiment: does a process hold its lock?
    [ -f "$1/lock" ] && ! flock -n "$1/lock" true
}

if [ "$mode" = pause ] || [ "$mode" = continue ]; then
    signal=STOP
    [ "$mode" = pause ] || signal=CONT
    for folder in "$runs"/*/; do
        if is_running "${folder%/}" && kill "-$signal" -- "-$(<"$folder/pid")"; then
            note "$mode: $(basename -- "$folder")"
        fi
    done
    exit 0
fi

# ---- the experiments ----------------------------------------------------------------------------

queue=${queue:-$root/scripts/experiments.queue}
need_file "$queue" "QUEUE"
names=()
declare -A command_of after_of state_of
form='^([A-Za-z0-9_][A-Za-z0-9._-]*)(\[after=([A-Za-z0-9._,-]+)\])?[[:space:]]+(.+)$'
number=0
while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    [[ $line =~ ^[[:space:]]*(#.*)?$ ]] && continue
    [[ $line =~ $form ]] ||
        fail "QUEUE: line $number of $queue is '$line'; allowed: NAME COMMAND, or NAME[after=OTHER] COMMAND"
    name=${BASH_REMATCH[1]} after=${BASH_REMATCH[3]//,/ } text=${BASH_REMATCH[4]}
    [ -z "${command_of[$name]:-}" ] || fail "QUEUE: line $number of $queue names $name again"
    for other in $after; do
        [ -n "${command_of[$other]:-}" ] ||
            fail "QUEUE: line $number of $queue: after=$other; allowed: a name of an earlier line"
    done
    names+=("$name")
    command_of[$name]=$text after_of[$name]=$after
done <"$queue"
for option in only rerun; do
    [ -z "${!option}" ] || need_choice "--$option" "${!option}" "${names[@]}"
done
[ -z "$only" ] || names=("$only")

look() { # name: sets its state from what lies in its folder
    local folder=$runs/$1 made
    state_of[$1]='not run'
    if [ -f "$folder/done" ]; then
        IFS= read -r made <"$folder/done" || true # empty where a disk was full
        state_of[$1]='done'
        [ "$made" = "${command_of[$1]}" ] || state_of[$1]='done by another command'
    elif is_running "$folder"; then
        state_of[$1]='running'
    elif [ -f "$folder/failed" ]; then
        state_of[$1]="failed ($(head -n 1 -- "$folder/failed"))"
    fi
}

mark() { # file, then its lines: all of it or nothing
    printf '%s\n' "${@:2}" >"$1.new"
    mv -- "$1.new" "$1"
}

if [ -n "$keep" ]; then
    for name in "${names[@]}"; do
        look "$name"
        # shellcheck disable=SC2053 # a pattern
        if [[ $name == $keep && ${state_of[$name]} == 'done by another command' ]]; then
            mark "$runs/$name/done" "${command_of[$name]}" "$(sed -n 2p -- "$runs/$name/done")"
            note "$name: done, by its present command too"
        fi
    done
    mode=list
fi

# ---- running ------------------------------------------------------------------------------------

child=
experiment() { # folder, command: runs it and marks how it ended, in a session of its own
    local started=$SECONDS status=0 stopped=
    trap 'stopped=1' INT TERM # only set: bash waits for the command, which gets the signal too
    mark "$1/pid" "$$"
    bash -c "$2" || status=$?
    printf '==== %s: status %s\n' "$(date -u +%FT%TZ)" "$status"
    if [ -n "$stopped" ]; then
        exit "$((status > 0 ? status : 143))"
    elif [ "$status" = 0 ]; then
        mark "$1/done" "$2" "$((SECONDS - started))"
    else
        mark "$1/failed" "$status" "$((SECONDS - started))"
    fi
    exit "$status"
}

stop() { # exit status; no mark is left, so that the next start goes on
    trap '' INT TERM
    if [ -n "$child" ]; then
        kill -TERM -- "-$child" 2>/dev/null || true
        kill -CONT -- "-$child" 2>/dev/null || true # it may be paused
        wait "$child" 2>/dev/null || true
    fi
    note "stopped; the same command goes on"
    exit "$1"
}

run() { # name
    local folder=$runs/$1 started=$SECONDS status=0
    mkdir -p -- "$folder"
    # The experiment itself holds the lock: it counts as running even if this queue is killed.
    exec 8>"$folder/lock"
    if ! flock -w 1 8; then # a look at the table holds it for a moment
        note "$1: runs in another queue"
        return
    fi
    look "$1" # another queue may have finished it in between
    if [ -f "$folder/done" ] && [ "$1" != "$rerun" ]; then
        return
    fi
    rm -f -- "$folder/done" "$folder/failed"
    note "$1: starts (log: $folder/log)"
    printf '==== %s: %s\n' "$(date -u +%FT%TZ)" "${command_of[$1]}" >>"$folder/log"
    (
        cd -- "$root"
        # A session of its own is a process group of its own, which can be paused as a whole.
        # It writes its own end mark, since it may outlive this queue.
        exec setsid bash -c "$(declare -f mark experiment)"'; experiment "$@"' experiment \
            "$folder" "${command_of[$1]}"
    ) >>"$folder/log" 2>&1 </dev/null &
    child=$!
    wait "$child" || status=$?
    child=
    if [ "$status" != 0 ]; then
        # An experiment that is killed with its session leaves no mark.
        [ -f "$folder/failed" ] || mark "$folder/failed" "$status" "$((SECONDS - started))"
        note "$1: failed with status $status (log: $folder/log)"
    fi
}

if [ "$mode" = run ]; then
    case $runs in /*) ;; *) runs=$PWD/$runs ;; esac
    trap 'stop 130' INT
    trap 'stop 143' TERM
    for name in "${names[@]}"; do
        look "$name"
        if [ "$name" != "$rerun" ]; then
            [ "${state_of[$name]}" != done ] || continue
            if [ "${state_of[$name]}" != "${state_of[$name]#done}" ]; then
                note "$name: its command has changed since it was done; --rerun $name runs it again, --keep $name does not"
                continue
            fi
        fi
        for other in ${after_of[$name]}; do
            look "$other"
            if [ "${state_of[$other]}" != done ]; then
                note "$name: waits for $other (${state_of[$other]})"
                continue 2
            fi
        done
        run "$name"
        exec 8>&-
    done
fi

result=0
printf '%-40s %-24s %s\n' name state minutes
for name in "${names[@]}"; do
    look "$name"
    [ "${state_of[$name]}" = done ] || result=1
    seconds=
    for file in "$runs/$name/done" "$runs/$name/failed"; do
        [ ! -f "$file" ] || seconds=$(sed -n 2p -- "$file")
    done
    [ -z "$seconds" ] || seconds=$((seconds / 60)).$((seconds % 60 / 6))
    printf '%-40s %-24s %s\n' "$name" "${state_of[$name]}" "$seconds"
done
exit "$result"
}
