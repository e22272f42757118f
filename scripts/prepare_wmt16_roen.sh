#!/usr/bin/env bash
# WMT16, Romanian to English.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=wmt16 source=ro target=en
splits=(train valid test)
urls=(
    https://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz
    https://object.pouta.csc.fi/OPUS-SETIMES/v2/tmx/en-ro.tmx.gz
    https://data.statmt.org/wmt19/translation-task/dev.tgz
)
vocab=32000
max_tokens=250

usage() {
    cat <<'END'
usage: scripts/prepare_wmt16_roen.sh (download | --from DIR) [options] [DEST]

WMT 2016, Romanian to English: Europarl v8 and SETIMES2 (0.6 million pairs) for training, valid is
newsdev2016, test is newstest2016 (1,999 sentences each). So in Zhang et al. 2020, with 32,000
merges. They name no clean-up; here pairs of more than 250 tokens are dropped, and Romanian keeps
its diacritics.

Three files, 0.3 GB; takes about an hour.

END
    common_options
}

make_raw() {
    local lang file set split
    "${paradec[@]}" data markup tmx "$from/en-ro.tmx.gz" ro en \
        "$work/setimes.ro" "$work/setimes.en"
    for lang in ro en; do
        {
            member training-parallel-ep-v8.tgz "europarl-v8.ro-en.$lang"
            cat -- "$work/setimes.$lang"
        } >"$work/raw/train.$lang"
    done
    for file in src.ro ref.en; do
        for set in newsdev2016:valid newstest2016:test; do
            split=${set#*:}
            member dev.tgz "${set%:*}-roen-$file.sgm" >"$work/$split.sgm"
            "${paradec[@]}" data markup sgm "$work/$split.sgm" \
                >"$work/raw/$split.${file#*.}"
        done
    done
}

parse_arguments "$@"
prepare
