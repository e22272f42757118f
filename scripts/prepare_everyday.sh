#!/usr/bin/env bash
# Image captions and everyday sentences together, English to German.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=everyday source=en target=de vocab=10000 max_tokens=100
splits=(train valid test test1 test2)
captions=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
urls=(https://www.manythings.org/anki/deu-eng.zip)
for file in train val test_2016_flickr test_2017_flickr; do
    urls+=("$captions/$file.en.gz" "$captions/$file.de.gz")
done

usage() {
    cat <<'END'
usage: scripts/prepare_everyday.sh (download | --from DIR) [options] [DEST]

Multi30k and Tatoeba together, English to German: 29,000 captions of images and about 160,000 short
everyday sentences. The files are those of prepare_multi30k.sh and prepare_tatoeba.sh, in one folder.

    train   all captions, and Tatoeba's sentences with all their translations
    valid   val of Multi30k (1,014) and 1,000 sentences of Tatoeba
    test    test_2016_flickr (1,000 captions)
    test1   test_2017_flickr (1,000 captions)
    test2   2,000 sentences of Tatoeba

Tatoeba is split by a hash of the English sentence: no English sentence is in two splits.

END
    common_options
}

make_raw() {
    local lang
    "$python" -m zipfile -e "$from/deu-eng.zip" "$work/zip"
    need_file "$work/zip/deu.txt" "deu.txt in deu-eng.zip"
    mkdir -- "$work/tatoeba"
    "${paradec[@]}" data hash-split "$work/tatoeba" en de --valid 8 --test 16 \
        <"$work/zip/deu.txt"
    for lang in en de; do
        gzip -dc -- "$from/train.$lang.gz" >"$work/raw/train.$lang"
        cat -- "$work/tatoeba/train.$lang" >>"$work/raw/train.$lang"
        gzip -dc -- "$from/val.$lang.gz" >"$work/raw/valid.$lang"
        head -n 1000 -- "$work/tatoeba/valid.$lang" >>"$work/raw/valid.$lang"
        gzip -dc -- "$from/test_2016_flickr.$lang.gz" >"$work/raw/test.$lang"
        gzip -dc -- "$from/test_2017_flickr.$lang.gz" >"$work/raw/test1.$lang"
        head -n 2000 -- "$work/tatoeba/test.$lang" >"$work/raw/test2.$lang"
    done
}

parse_arguments "$@"
prepare
