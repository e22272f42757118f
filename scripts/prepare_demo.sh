#!/usr/bin/env bash
# Remake data-bin/demo.en-de from its sources: raw text, BPE codes, dictionaries, a checkpoint.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'EOF'
usage: scripts/prepare_demo.sh [--checkpoint FILE] [--drafter FILE] [--ibdecoder FILE]
                               [--ibdecoder-sa FILE] [--heads FILE] [--assistant FILE]
                               [--dest DIR]
                               [--python PYTHON]

Remakes the embedded demo folder from
    DEST/raw/demo.{en,de}   the sentences, one per line
    DEST/codes.bpe          the BPE codes
    DEST/dict.{en,de}.txt   the dictionaries of the model
    FILE                    full fairseq checkpoints: the model, GAD's drafter for it, models that
                            write several words a step, and heads for blockwise decoding on the
                            model (a blockwise_transformer on it, frozen, or its heads alone)
and writes
    DEST/bpe/demo.{en,de}   normalised, tokenised, split by BPE
    DEST/test.en-de.*       the same, binarised
    DEST/model.pt           the checkpoint with fp16 weights and without training state
    DEST/drafter.pt         the same of the drafter, without its encoder, which is the model's
    DEST/ibdecoder.pt, DEST/ibdecoder_sa.pt
                            the same of the others
    DEST/heads.pt           the same of the heads alone
    DEST/assistant.pt       the same of a drafter for --decoding assisted, without its encoder
    DEST/paradec.json       names model, drafter and BPE for paradec translate, with their hashes

options:
    --checkpoint FILE   without it, DEST/model.pt stays as it is
    --drafter FILE      without it, DEST/drafter.pt stays as it is
    --ibdecoder FILE    without it, DEST/ibdecoder.pt stays as it is
    --ibdecoder-sa FILE without it, DEST/ibdecoder_sa.pt stays as it is
    --heads FILE        without it, DEST/heads.pt stays as it is
    --assistant FILE    a shallow_decoder; without it, DEST/assistant.pt stays as it is
    --dest DIR          default: data-bin/demo.en-de in this checkout
    --python PYTHON     default: .venv/bin/python in this checkout, else python3
EOF
}

dest=$root/data-bin/demo.en-de
kinds="checkpoint drafter ibdecoder ibdecoder_sa heads assistant"
for name in $kinds; do declare "$name="; done

while [ $# -gt 0 ]; do
    case $1 in
        --checkpoint | --drafter | --ibdecoder | --ibdecoder-sa | --heads | --assistant | \
            --dest | --python)
            need_value "$@"
            name=${1#--}
            declare "${name//-/_}=$2"
            shift 2
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "unknown argument: $1 (see --help)" ;;
    esac
done

need_python fairseq sacremoses subword_nmt torch
need_file "$dest/codes.bpe" "BPE codes"
for lang in en de; do
    need_file "$dest/raw/demo.$lang" "raw text"
    need_file "$dest/dict.$lang.txt" "dictionary"
done
for name in $kinds; do
    [ -z "${!name}" ] || need_file "${!name}" "checkpoint (--${name//_/-})"
done
lines_en=$(wc -l <"$dest/raw/demo.en")
lines_de=$(wc -l <"$dest/raw/demo.de")
[ "$lines_en" -eq "$lines_de" ] ||
    fail "raw/demo.en has $lines_en lines, raw/demo.de has $lines_de; they must be parallel"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

moses() { # language, then the sacremoses command and its options
    "$python" -m sacremoses -q -l "$@"
}

echo "[1/3] tokenise and split" >&2
mkdir -p "$dest/bpe"
for lang in en de; do
    moses "$lang" normalize <"$dest/raw/demo.$lang" |
        moses "$lang" tokenize -a |
        "$python" -m subword_nmt.apply_bpe -c "$dest/codes.bpe" >"$work/demo.$lang"
    [ "$(wc -l <"$work/demo.$lang")" -eq "$lines_en" ] || fail "lines were lost in $lang"
    cp -- "$work/demo.$lang" "$dest/bpe/demo.$lang"
done

echo "[2/3] binarise" >&2
# In a folder of its own: fairseq-preprocess refuses to write where a dictionary already lies.
"$python" -m fairseq_cli.preprocess --source-lang en --target-lang de \
    --testpref "$work/demo" --srcdict "$dest/dict.en.txt" --tgtdict "$dest/dict.de.txt" \
    --destdir "$work/bin" --workers 1 >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    fail "fairseq-preprocess failed"
}
for lang in en de; do
    for ext in bin idx; do
        cp -- "$work/bin/test.en-de.$lang.$ext" "$dest/"
    done
done

echo "[3/3] models" >&2
for name in $kinds; do
    file=$name.pt more=()
    case $name in
        checkpoint) file=model.pt ;;
        heads) more=(--heads-only) ;;
        drafter | assistant) more=(--without-encoder) ;;
    esac
    if [ -n "${!name}" ]; then
        "${paradec[@]}" shrink --max-mb 30 "${more[@]}" -- "${!name}" "$dest/$file"
    else
        echo "$file: no checkpoint given, left as it is" >&2
    fi
done
drafts=()
for file in assistant.pt drafter.pt; do # the last one that is there
    [ ! -f "$dest/$file" ] || drafts=(--drafter-path "$dest/$file")
done
"${paradec[@]}" pack "$dest" "$dest" --path "$dest/model.pt" "${drafts[@]}" \
    --tokenizer moses --bpe subword_nmt --bpe-codes "$dest/codes.bpe"
