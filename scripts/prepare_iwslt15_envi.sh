#!/usr/bin/env bash
# IWSLT15, English to Vietnamese.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=iwslt15 source=en target=vi
splits=(train valid test)
tokenised=yes
urls=()
for file in train tst2012 tst2013; do
    for lang in en vi; do
        urls+=("https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/$file.$lang")
    done
done

usage() {
    cat <<'END'
usage: scripts/prepare_iwslt15_envi.sh (download | --from DIR) [options] [DEST]

IWSLT 2015, English to Vietnamese: talks, 133,317 pairs for training, valid is tst2012 and test is
tst2013, in the version of Luong and Manning 2015 (nlp.stanford.edu/projects/nmt). Its text is
tokenised already: it is tok/ here, and raw/ is made from it by sacremoses' detokeniser. (Santilli et al. 2023 decode this pair
with models trained by others, on another test set of 1,046 sentences.)

END
    common_options
}

set_tokeniser() {
    tokeniser=(cat)
}

make_raw() {
    local lang
    for lang in en vi; do
        cat -- "$from/train.$lang" >"$work/raw/train.$lang"
        cat -- "$from/tst2012.$lang" >"$work/raw/valid.$lang"
        cat -- "$from/tst2013.$lang" >"$work/raw/test.$lang"
    done
}

parse_arguments "$@"
prepare
