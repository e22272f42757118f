#!/usr/bin/env bash
# Long sentences, by joining those of a prepared data folder.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
export PYTHONUTF8=1

usage() {
    cat <<'END'
usage: scripts/prepare_long.sh --data DIR [options] DEST

Makes test sets of long sentences from a data folder of another prepare_*.sh, to show how decoding
depends on length: neighbouring sentences of one of its test sets are joined by a space. The BPE
codes and dictionaries stay, so that models of DIR work on DEST.

DEST afterwards has the subsets
    test    the sentences as they are
    test1   2 joined, test2   4 joined, test3   8 joined
as raw/, tok/, bpe/ and binarised. Sentences left over, too few for a line, are left out and counted.

options:
    --data DIR          a folder with raw/, tok/, bpe/, codes.bpe and the dictionaries
    --subset NAME       which of its subsets (default: test)
    --smoke             only the first 16 of its sentences
    --python PYTHON     default: .venv/bin/python in this checkout, else python3
END
}

data='' subset=test dest='' smoke=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --data | --subset | --python)
            need_value "$@"
            declare "${1#--}=$2"
            shift 2
            ;;
        --smoke) smoke=yes && shift ;;
        -*) fail "unknown option: $1 (see --help)" ;;
        *)
            [ -z "$dest" ] || fail "more than one DEST: $dest, $1 (see --help)"
            dest=$1 && shift
            ;;
    esac
done
[ -n "$data" ] || fail "--data is missing (see --help)"
[ -n "$dest" ] || fail "DEST is missing (see --help)"
need_no_colon --data "$data"
need_dir "$data" "data folder (--data)"
data=$(cd -- "$data" && pwd)
need_file "$data/codes.bpe" "BPE codes"

# train.en-de.en.bin names the languages; so does any other split.
pair=
for path in "$data/$subset".*-*.*.bin; do
    [ ! -e "$path" ] || pair=$(basename -- "$path" .bin)
done
[ -n "$pair" ] || fail "--subset: got '$subset'; no $subset.*.bin in $data"
pair=${pair#"$subset".} && pair=${pair%.*}
source=${pair%-*} target=${pair#*-}
for lang in "$source" "$target"; do
    need_file "$data/dict.$lang.txt" "dictionary"
    for kind in raw tok bpe; do need_file "$data/$kind/$subset.$lang" "text"; done
done
need_python fairseq

lines=$(wc -l <"$data/raw/$subset.$source")
[ -z "$smoke" ] || lines=$((lines < 16 ? lines : 16))
[ "$lines" -ge 8 ] || fail "$data/raw/$subset.$source has $lines lines; at least 8 are needed"
case $dest in /*) ;; *) dest=$PWD/$dest ;; esac
[ "$(realpath -m -- "$dest")" != "$(realpath -- "$data")" ] ||
    fail "DEST must not be the folder of --data"
claim_dest "$dest"
work=$dest/.work
trap 'rm -rf -- "$work"' EXIT
rm -rf -- "$work"
mkdir -- "$work"
{
    echo "recipe long"
    echo "lines $lines"
    for file in {raw,tok,bpe}/"$subset.$source" {raw,tok,bpe}/"$subset.$target" \
        codes.bpe "dict.$source.txt" "dict.$target.txt"; do
        echo "input $(sha256sum <"$data/$file" | cut -d ' ' -f 1) $file"
    done
} >"$work/settings"
settle "$dest" "$work/settings"

tests='' size=1
for name in test test1 test2 test3; do
    note "$name: $((lines / size)) lines of $size sentences, $((lines % size)) left out"
    columns=()
    for ((i = 0; i < size; i++)); do columns+=(-); done
    for kind in raw tok bpe; do
        mkdir -p -- "$work/$kind"
        for lang in "$source" "$target"; do
            head -n "$((lines / size * size))" -- "$data/$kind/$subset.$lang" |
                paste -d ' ' "${columns[@]}" >"$work/$kind/$name.$lang"
        done
    done
    tests=${tests:+$tests,}$work/bpe/$name
    size=$((size * 2))
done

note "binarise"
quietly "$work/log" "$python" -m fairseq_cli.preprocess --source-lang "$source" \
    --target-lang "$target" --testpref "$tests" --srcdict "$data/dict.$source.txt" \
    --tgtdict "$data/dict.$target.txt" --destdir "$work/bin" --workers 1
for kind in raw tok bpe; do
    rm -rf -- "${dest:?}/$kind"
    mv -- "$work/$kind" "$dest/"
done
cp -- "$data/codes.bpe" "$work/bin/"
rm -f -- "$work/bin/preprocess.log"
mv -- "$work/bin/"* "$dest/"
mkdir -p -- "$dest/.done"
touch -- "$dest/.done/long"
note "done: $dest"
