#!/usr/bin/env bash
# Tatoeba, English to German.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=tatoeba source=en target=de
splits=(train valid test)
urls=(https://www.manythings.org/anki/deu-eng.zip)
own_options=(--min-length --max-length)
min_length=1 max_length=''

usage() {
    cat <<'END'
usage: scripts/prepare_tatoeba.sh (download | --from DIR) [options] [DEST]

Short everyday sentences, English to German (6 words on average), from tatoeba.org by way of
manythings.org: the file deu-eng.zip, CC-BY 2.0. Columns with licence and attribution are left out
of the text; redistributions of the text must name Tatoeba.

Many English sentences have several translations. The split is by a hash of the English sentence
(10 in 1000 for valid, 20 for test), so that all of them land in one split. Train has all
translations, valid and test have one of each.

The file is replaced by newer ones from time to time: verify yours, and give --accept.

    --min-length N      only English sentences of N words or more (default: 1)
    --max-length N      or of at most N words (default: any)
END
    common_options
}

make_raw() {
    "$python" -m zipfile -e "$from/deu-eng.zip" "$work/zip"
    need_file "$work/zip/deu.txt" "deu.txt in deu-eng.zip"
    "${paradec[@]}" data hash-split "$work/raw" en de --valid 10 --test 20 \
        --min-words "$min_length" ${max_length:+--max-words "$max_length"} <"$work/zip/deu.txt"
}

parse_arguments "$@"
need_number --min-length "$min_length"
if [ -n "$max_length" ]; then
    need_number --max-length "$max_length"
    [ "$min_length" -le "$max_length" ] ||
        fail "--min-length: got '$min_length'; allowed: at most --max-length, $max_length"
fi
prepare
