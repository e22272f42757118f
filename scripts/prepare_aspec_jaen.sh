#!/usr/bin/env bash
# ASPEC, Japanese to English.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=aspec source=ja target=en
splits=(train valid test)
own_options=(--segmenter)
segmenter=''
vocab=32000
max_tokens=250

usage() {
    cat <<'END'
usage: scripts/prepare_aspec_jaen.sh --from DIR [options] [DEST]

ASPEC, Japanese to English: abstracts of papers, 3 million pairs for training, valid is dev, and
test is devtest and test together (3,596 sentences), as in Imamura and Sumita 2020. They have 16,000
subwords for each language; here one BPE of 32,000 merges serves both, since the data folder has one
dictionary. The corpus may not be passed on: ask for it at lotus.kuee.kyoto-u.ac.jp/ASPEC and give
--from .../ASPEC-JE, the folder of train/train-{1,2,3}.txt, dev/dev.txt, devtest/devtest.txt and
test/test.txt.

Japanese has no spaces between words: either the files have been segmented, or

    --segmenter COMMAND a program that reads sentences and writes them with spaces between the
                        words, line by line: 'mecab -Owakati', 'kytea -notags'
END
    common_options
}

set_tokeniser() { # language
    if [ "$1" = en ]; then
        tokeniser=("$python" -m sacremoses -q -l en normalize tokenize -a)
    elif [ -n "$segmenter" ]; then
        read -ra tokeniser <<<"$segmenter"
    else
        tokeniser=(cat)
    fi
}

find_inputs() {
    local file
    inputs=()
    for file in train/train-{1,2,3} dev/dev devtest/devtest test/test; do
        inputs+=("$from/$file.txt")
    done
}

# Lines are FIELD ||| ... ||| JAPANESE ||| ENGLISH.
columns() { # split, files
    local split=$1
    shift
    awk -F ' [|][|][|] ' -v ja="$work/raw/$split.ja" -v en="$work/raw/$split.en" \
        '{ print $(NF - 1) > ja; print $NF > en }' "$@"
}

make_raw() {
    columns train "$from"/train/train-{1,2,3}.txt
    columns valid "$from/dev/dev.txt"
    columns test "$from/devtest/devtest.txt" "$from/test/test.txt"
    if [ -z "$segmenter" ] && ! head -n 100 -- "$work/raw/valid.ja" | grep -q '[^ ] [^ ]'; then
        fail "the Japanese in $from has no spaces between words: give --segmenter (see --help)"
    fi
}

parse_arguments "$@"
if [ -n "$segmenter" ]; then
    read -ra words <<<"$segmenter"
    command -v -- "${words[0]}" >/dev/null || fail "--segmenter: no such program: ${words[0]}"
fi
prepare
