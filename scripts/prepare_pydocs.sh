#!/usr/bin/env bash
# Python's documentation, English to Spanish.
set -euo pipefail
# shellcheck source=scripts/data_lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/data_lib.sh"

name=pydocs source=en target=es
splits=(train valid test)
urls=(https://github.com/python/python-docs-es)
own_options=(--commit)
commit=''
max_ratio=3

usage() {
    cat <<'END'
usage: scripts/prepare_pydocs.sh (download --commit HASH | --from DIR) [options] [DEST]

Technical prose, English to Spanish (22 words on average, up to 60): the translation of Python's
documentation, github.com/python/python-docs-es, CC0. Mark-up is stripped; fuzzy and untranslated
messages are left out. The split is by a hash of the English side (20 in 1000 for valid, 30 for
test): all translations of one paragraph land in one split. Train has all translations, valid and
test have one of each.

--from DIR takes either a checkout (its *.po files) or a split made before, in
train.{en,es}.gz, val.{en,es}.gz, test.{en,es}.gz.

    --commit HASH       what download fetches, in full (40 digits). The hash is checksum enough,
                        and --accept is not needed. --mirror is another copy of the repository
END
    common_options
}

fetch_commit() {
    local repository=$dest/download/python-docs-es
    command -v git >/dev/null || fail "download needs git; or give --from DIR"
    if [ "$(git -C "$repository" rev-parse -q --verify HEAD 2>/dev/null)" != "$commit" ]; then
        note "fetch $commit from ${mirror:-${urls[0]}}"
        git init -q -- "$repository"
        git -C "$repository" fetch -q --depth 1 "${mirror:-${urls[0]}}" "$commit" ||
            fail "cannot fetch $commit (git's error stands above)"
        git -C "$repository" checkout -q -f "$commit"
    fi
    from=$repository
}

find_inputs() {
    local split path
    if [ -n "$mode" ]; then fetch_commit; fi
    inputs=()
    if [ -f "$from/train.en.gz" ]; then
        for split in train val test; do
            inputs+=("$from/$split.en.gz" "$from/$split.es.gz")
        done
        return
    fi
    while IFS= read -r -d '' path; do
        inputs+=("$path")
    done < <(find "$from" -name .git -prune -o -name '*.po' -print0 | LC_ALL=C sort -z)
    [ ${#inputs[@]} -gt 0 ] || fail "neither train.en.gz nor *.po files in $from (--from)"
}

make_raw() {
    local lang
    if [ -f "$from/train.en.gz" ]; then
        for lang in en es; do
            gzip -dc -- "$from/train.$lang.gz" >"$work/raw/train.$lang"
            gzip -dc -- "$from/val.$lang.gz" >"$work/raw/valid.$lang"
            gzip -dc -- "$from/test.$lang.gz" >"$work/raw/test.$lang"
        done
    else
        "${paradec[@]}" data po "${inputs[@]}" >"$work/pairs"
        "${paradec[@]}" data hash-split "$work/raw" en es --valid 20 --test 30 \
            --min-words 5 --max-words 60 <"$work/pairs"
    fi
}

parse_arguments "$@"
[ -z "$mode" ] || [[ $commit =~ ^[0-9a-f]{40}$ ]] ||
    fail "--commit: got '$commit'; download needs a commit's full hash, 40 hexadecimal digits"
prepare
