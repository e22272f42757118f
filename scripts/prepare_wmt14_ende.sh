#!/usr/bin/env bash
# WMT14, English to German.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=wmt14 source=en target=de
splits=(train valid test)
urls=(
    https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz
    https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz
    https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz
    https://data.statmt.org/wmt19/translation-task/dev.tgz
)
vocab=32000
max_tokens=250

usage() {
    cat <<'END'
usage: scripts/prepare_wmt14_ende.sh (download | --from DIR) [options] [DEST]

WMT 2014, English to German: Europarl v7, Common Crawl and News Commentary v9 (4.5 million pairs)
for training, valid is newstest2013, test is newstest2014 (all 3,003 sentences). So in Stern et al.
2018, Xia et al. 2022 and Zhang et al. 2020, the last two with the 32,000 merges that are the
default here. Imamura and Sumita 2020 take 37,000, validate on newstest2009 and test on
newstest2010 to 2016, which this script does not make.

The papers name no clean-up; here pairs of more than 250 tokens are dropped. For one by ratio as
well (Ott et al. 2018, the text split by BPE) add --max-ratio 1.5.

Four archives, 1.7 GB; takes hours and 15 GB of disk.

END
    common_options
}

make_raw() {
    local lang file
    for lang in en de; do
        {
            member training-parallel-europarl-v7.tgz "europarl-v7.de-en.$lang"
            member training-parallel-commoncrawl.tgz "commoncrawl.de-en.$lang"
            member training-parallel-nc-v9.tgz "news-commentary-v9.de-en.$lang"
        } >"$work/raw/train.$lang"
        member dev.tgz "newstest2013.$lang" >"$work/raw/valid.$lang"
    done
    # The one set serves both directions: German is its source, by name only.
    for file in src.de ref.en; do
        member dev.tgz "newstest2014-deen-$file.sgm" >"$work/test.sgm"
        "${paradec[@]}" data markup sgm "$work/test.sgm" >"$work/raw/test.${file#*.}"
    done
}

parse_arguments "$@"
prepare
