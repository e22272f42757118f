#!/usr/bin/env bash
# Documents and their summaries, of any corpus.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=summarisation source=document target=summary
splits=(train valid test)
own_options=(--language --max-document --max-summary)
own_switches=(--tokenized)
language=en max_document='' max_summary='' tokenized=''

usage() {
    cat <<'END'
usage: scripts/prepare_summarisation.sh --from DIR [options] [DEST]

Summarisation as translation from `document` to `summary`. DIR has train.document, train.summary,
valid.* and test.*, a text a line. docs/summarisation.md says how to get there from Gigaword and
CNN/DailyMail.

    --tokenized         the text comes tokenised: it is tok/ here, and raw/ is made from it
    --max-document N    cut documents to their first N words, of all splits
    --max-summary N     cut summaries to their first N words, of train alone: those of valid and
                        test are what others are measured by
    --language LANG     of both, for the tokeniser (default: en)

A word is what stands between spaces in DIR. CNN/DailyMail as See et al. 2017 cut it:
--tokenized --max-document 400 --max-summary 100.

END
    common_options
}

find_inputs() {
    local split side
    inputs=()
    for split in "${splits[@]}"; do
        for side in "$source" "$target"; do inputs+=("$from/$split.$side"); done
    done
}

make_raw() {
    local split side words
    for split in "${splits[@]}"; do
        for side in "$source" "$target"; do
            words=''
            if [ "$side" = "$source" ]; then
                words=$max_document
            elif [ "$split" = train ]; then
                words=$max_summary
            fi
            "${paradec[@]}" data first-words ${words:+"$words"} \
                <"$from/$split.$side" >"$work/raw/$split.$side"
        done
    done
}

parse_arguments "$@"
if [ -n "$max_document" ]; then need_number --max-document "$max_document"; fi
if [ -n "$max_summary" ]; then need_number --max-summary "$max_summary"; fi
[[ $language =~ ^[a-z]{2,3}$ ]] ||
    fail "--language: got '$language'; allowed: two or three letters, such as en"
if [ -n "$tokenized" ]; then
    tokenised=yes
    set_tokeniser() {
        tokeniser=(cat)
    }
fi
prepare
