#!/usr/bin/env bash
# Multi30k, English to German.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=multi30k source=en target=de
splits=(train valid test test1)
base=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
urls=()
for file in train val test_2016_flickr test_2017_flickr; do
    urls+=("$base/$file.en.gz" "$base/$file.de.gz")
done

usage() {
    cat <<'END'
usage: scripts/prepare_multi30k.sh (download | --from DIR) [options] [DEST]

Image captions, English to German: 29,000 pairs for training, 1,014 for validation (val), test is
test_2016_flickr and test1 is test_2017_flickr, 1,000 each. The files are {train,val,
test_2016_flickr,test_2017_flickr}.{en,de}.gz of github.com/multi30k/dataset, data/task1/raw.
Cite Elliott et al. 2016 and 2017. Takes about a minute.

END
    common_options
}

make_raw() {
    local lang
    for lang in en de; do
        gzip -dc -- "$from/train.$lang.gz" >"$work/raw/train.$lang"
        gzip -dc -- "$from/val.$lang.gz" >"$work/raw/valid.$lang"
        gzip -dc -- "$from/test_2016_flickr.$lang.gz" >"$work/raw/test.$lang"
        gzip -dc -- "$from/test_2017_flickr.$lang.gz" >"$work/raw/test1.$lang"
    done
}

parse_arguments "$@"
prepare
