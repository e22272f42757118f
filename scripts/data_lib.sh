# Sourced by the prepare_*.sh recipes: arguments, downloads, and the way from raw text to a fairseq
# data folder. Not a command of its own.
# shellcheck shell=bash
#
# A recipe sets name, source, target, splits, urls (of all files that it needs) and what it wants
# otherwise than the defaults below, defines usage and make_raw, and ends with
#     parse_arguments "$@"
#     prepare
# make_raw finds the files in $from and writes $work/raw/SPLIT.LANG, one sentence per line.

# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
export PYTHONUTF8=1

urls=()           # without any there is no download
vocab=8000        # merges of the joint BPE
max_tokens=''     # training pairs with a longer side are dropped
max_ratio=''      # training pairs whose lengths differ by a greater factor are dropped
tokenised=''      # yes: the text comes tokenised, and raw/ is made from it
language=''       # of source and target, where these are no languages
own_options=()    # options of this recipe alone, each with a value: --min-length sets min_length
own_switches=()   # those without one: --tokenized sets tokenized to yes

# Sets the array tokeniser: the filter for the text of a language.
set_tokeniser() { # language
    tokeniser=("$python" -m sacremoses -q -l "${language:-$1}" normalize tokenize -a)
}

mode='' from='' accept='' mirror='' codes='' dict='' smoke='' dest=''
workers=$(nproc)

# Lines that one process tokenises in one go: large files are done in parts, several at a time.
part_lines=50000

common_options() {
    if [ ${#urls[@]} -gt 0 ]; then
        cat <<END
where from (one of the two):
    download            fetch the files into DEST/download. Each must have the SHA-256 that stands
                        in scripts/checksums/$name.sha256; a file without one is refused
    --from DIR          take the same files from DIR; whether their checksums agree is said
    --mirror URL        download from URL/FILE instead (also file:///...)
    --accept FILE       checksums (as sha256sum writes them) that you have verified, to be taken
                        instead of scripts/checksums/$name.sha256
END
    fi
    cat <<END
options:
    --vocab N           merges of the joint BPE (default: $vocab)
    --max-tokens N      drop training pairs with more tokens on a side (default: ${max_tokens:-any number})
    --max-ratio X       and those where one side is X times longer (default: ${max_ratio:-any})
    --codes FILE        use these BPE codes, and with
    --dict FILE         this dictionary: the data are made to fit a model that exists
    --smoke             the first 200 lines of each split and 300 merges: a try-out
    --workers N         processes (default: all cores, $workers)
    --python PYTHON     default: .venv/bin/python in this checkout, else python3
    DEST                the folder to be made (default: data-bin/$name.$source-$target in this checkout)

DEST afterwards is a fairseq data folder: $source, $target; splits ${splits[*]}.
    raw/  tok/  bpe/    the text as it was, tokenised (sacremoses normalize, tokenize -a), and
                        split by BPE; line k is the same sentence in all of them
    codes.bpe           the BPE codes (subword-nmt, joint)
    dict.*.txt, *.bin   the dictionary (one for both languages) and the binarised splits
A run that was stopped is taken up where it was; what is finished is not done again.
END
}

is_among() { # option, then options
    local option
    for option in "${@:2}"; do
        [ "$option" != "$1" ] || return 0
    done
    return 1
}

absolute() { # path; one that starts with a dash is then no option to anybody
    case $1 in
        '' | /*) printf %s "$1" ;;
        *) printf %s "$PWD/$1" ;;
    esac
}

parse_arguments() {
    local key
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help)
                usage
                exit 0
                ;;
            --smoke) smoke=yes && shift ;;
            --)
                shift
                [ $# -eq 1 ] || fail "after -- comes DEST alone (got: $*)"
                dest=$1 && break
                ;;
            -*)
                if is_among "$1" ${own_switches[@]+"${own_switches[@]}"}; then
                    declare -g "${1#--}=yes"
                    shift && continue
                fi
                case $1 in
                    --from | --accept | --mirror | --codes | --dict | --python) ;;
                    --vocab | --workers | --max-tokens | --max-ratio) ;;
                    *)
                        is_among "$1" ${own_options[@]+"${own_options[@]}"} ||
                            fail "unknown option: $1 (see --help)"
                        ;;
                esac
                need_value "$@"
                key=${1#--}
                declare -g "${key//-/_}=$2"
                shift 2
                ;;
            download)
                [ ${#urls[@]} -gt 0 ] || fail "download: $name must be asked for; give --from DIR"
                mode=download && shift
                ;;
            *)
                [ -z "$dest" ] || fail "more than one DEST: $dest, $1 (see --help)"
                dest=$1 && shift
                ;;
        esac
    done
    [ -z "$from" ] || [ -z "$mode" ] || fail "download and --from exclude each other"
    [ -n "$from$mode" ] || fail "where from? give ${urls:+download or }--from DIR (see --help)"
    need_number --vocab "$vocab"
    need_number --workers "$workers"
    if [ -n "$max_tokens" ]; then need_number --max-tokens "$max_tokens"; fi
    [[ $max_ratio =~ ^([1-9][0-9]*(\.[0-9]+)?)?$ ]] ||
        fail "--max-ratio: got '$max_ratio'; allowed: a number from 1 up"
    if [ -n "$smoke" ]; then vocab=300; fi
    if [ -n "$dict" ]; then [ -n "$codes" ] || fail "--dict needs --codes"; fi
    dest=$(absolute "${dest:-$root/data-bin/$name.$source-$target}")
    from=$(absolute "$from") codes=$(absolute "$codes")
    dict=$(absolute "$dict") accept=$(absolute "$accept")
    need_no_colon DEST "$dest"
    if [ -n "$from" ]; then
        need_dir "$from" "folder (--from)"
        case $(realpath -m -- "$from")/ in
            "$(realpath -m -- "$dest")"/*) fail "--from: got '$from', which lies in DEST ($dest)" ;;
        esac
    fi
    for key in codes dict accept; do
        if [ -n "${!key}" ]; then need_file "${!key}" "file (--$key)"; fi
    done
    need_python fairseq sacremoses subword_nmt
}

# --- where the files come from ---

known_checksum() { # file: nothing if it is not known
    local list=${accept:-$root/scripts/checksums/$name.sha256}
    if [ -f "$list" ]; then
        awk -v name="$1" '{ sub(/^\*/, "", $2) } $2 == name { print $1; exit }' "$list"
    fi
}

checksum() { # path
    sha256sum <"$1" | cut -d ' ' -f 1
}

# A file is FILE.part during the download, FILE.unverified when it is complete, and FILE once its
# checksum is right.
fetch() { # address
    local file=${1##*/} address=$1 path
    path=$dest/download/$file
    [ -z "$mirror" ] || address=${mirror%/}/$file
    if [ ! -e "$path" ] && [ ! -e "$path.unverified" ]; then
        note "download $address"
        curl --fail --location --silent --show-error --output "$path.part" -- "$address" ||
            fail "cannot download $address (curl's error stands above)"
        mv -- "$path.part" "$path.unverified"
    fi
}

verify() { # file; adds to the array refused what cannot be taken
    local path=$dest/download/$1 want have
    [ ! -e "$path" ] || return 0
    want=$(known_checksum "$1")
    have=$(checksum "$path.unverified")
    if [ "$want" = "$have" ]; then
        mv -- "$path.unverified" "$path"
    else
        note "$1: SHA-256 is $have, must be ${want:-one that is known, and none is}"
        refused+=("$have  $1")
    fi
}

download_files() {
    local url refused=()
    command -v curl >/dev/null || fail "download needs curl; or fetch the files and give --from DIR"
    mkdir -p -- "$dest/download"
    for url in "${urls[@]}"; do fetch "$url"; done
    for url in "${urls[@]}"; do verify "${url##*/}"; done
    if [ ${#refused[@]} -gt 0 ]; then
        printf '%s\n' "${refused[@]}"
        fail "download: ${#refused[@]} of ${#urls[@]} files not verified (lines above; the files are" \
            "in $dest/download): verify them, put such lines into a file and give --accept FILE"
    fi
    from=$dest/download
}

# A file of an archive, to standard output; in which folder it lies there does not matter.
member() { # archive, file
    tar -xzOf "$from/$1" --wildcards --no-anchored "$2" || fail "$1 holds no $2, or is broken"
}

# Sets the array inputs: the paths of all files that the text is made from.
find_inputs() {
    local url
    if [ -n "$mode" ]; then download_files; fi
    inputs=()
    for url in "${urls[@]}"; do
        inputs+=("$from/${url##*/}")
    done
}

# --- steps ---

is_done() { # step, then what it makes in DEST: is all of it there?
    local made=$1 output
    shift
    [ -e "$dest/.done/$made" ] || return 1
    for output in "$@"; do
        if [ ! -e "$dest/$output" ]; then
            note "$output is gone; it is made again"
            rm -- "$dest/.done/$made"
            return 1
        fi
    done
}

step() { # name, what it does in words, function, then what it makes in DEST
    local made=$1 words=$2 action=$3
    shift 3
    if is_done "$made" "$@"; then
        note "$words: done before"
        return
    fi
    note "$words"
    rm -rf -- "$work"
    mkdir -p -- "$work" "$dest/.done"
    "$action"
    touch -- "$dest/.done/$made"
}

put_folder() { # name: from the working folder into its place, over what a stopped run left there
    rm -rf -- "${dest:?}/$1"
    mkdir -p -- "$(dirname -- "$dest/$1")"
    mv -- "$work/$1" "$dest/$1"
}

step_raw() {
    local split
    mkdir -p -- "$work/raw" "$work/.text/raw"
    make_raw
    for split in "${splits[@]}"; do
        "${paradec[@]}" data pairs clean ${smoke:+--lines 200} \
            "$work/raw/$split.$source" "$work/raw/$split.$target" \
            "$work/.text/raw/$split.$source" "$work/.text/raw/$split.$target" || exit 2
    done
    put_folder .text/raw
}

# A filter (standard input to standard output, line by line) over a file, in several processes.
in_parts() { # input, output, then the filter
    local input=$1 output=$2 parts
    shift 2
    rm -rf -- "$work/parts"
    mkdir -- "$work/parts"
    split -d -a 5 -l "$part_lines" -- "$input" "$work/parts/in."
    parts=$(find "$work/parts" -name 'in.*' | wc -l)
    # shellcheck disable=SC2016 # expanded by the inner shell
    find "$work/parts" -name 'in.*' -print0 | sort -z |
        parts=$parts xargs -0 -r -P "$workers" -n 1 bash -c '
            part=${!#}
            set -- "${@:1:$#-1}"
            "$@" <"$part" >"${part/%in.?????/out.${part##*.}}" 2>"$part.log" ||
                { tail -n 5 "$part.log" >&2; exit 255; }
            [ "$parts" -eq 1 ] || echo "    part $((10#${part##*.} + 1)) of $parts" >&2
        ' part "$@" || fail "failed on $input: $*"
    cat -- "$work/parts/out."* >"$output.part"
    [ "$(wc -l <"$output.part")" -eq "$(wc -l <"$input")" ] || fail "lines were lost: $output"
    mv -- "$output.part" "$output"
    note "  $(basename -- "$output"): $(wc -l <"$output") lines"
}

step_tok() {
    local split lang
    mkdir -p -- "$dest/.text/tok"
    for split in "${splits[@]}"; do
        for lang in "$source" "$target"; do
            if [ -e "$dest/.text/tok/$split.$lang" ]; then
                note "  $split.$lang: done before"
            else
                set_tokeniser "$lang"
                in_parts "$dest/.text/raw/$split.$lang" "$dest/.text/tok/$split.$lang" \
                    "${tokeniser[@]}"
            fi
        done
    done
}

# Drops unusable training pairs; the rest becomes the user's raw/ and tok/.
step_text() {
    local kind split lang
    mkdir -p -- "$work/raw" "$work/tok"
    for kind in raw tok; do
        for split in "${splits[@]}"; do
            for lang in "$source" "$target"; do
                [ "$split" = train ] || cp -- "$dest/.text/$kind/$split.$lang" "$work/$kind/"
            done
        done
    done
    "${paradec[@]}" data pairs filter ${max_tokens:+--max-tokens "$max_tokens"} \
        ${max_ratio:+--max-ratio "$max_ratio"} \
        "$dest/.text/tok/train.$source" "$dest/.text/tok/train.$target" \
        "$dest/.text/raw/train.$source" "$dest/.text/raw/train.$target" \
        "$work/tok/train.$source" "$work/tok/train.$target" \
        "$work/raw/train.$source" "$work/raw/train.$target" || exit 2
    if [ -n "$tokenised" ]; then
        for split in "${splits[@]}"; do
            for lang in "$source" "$target"; do
                in_parts "$work/tok/$split.$lang" "$work/raw/$split.$lang" \
                    "${paradec[@]}" data detokenise "${language:-$lang}"
            done
        done
    fi
    put_folder raw
    put_folder tok
}

step_codes() {
    if [ -n "$codes" ]; then
        cp -- "$codes" "$work/codes.bpe"
    else
        cat -- "$dest/tok/train.$source" "$dest/tok/train.$target" |
            "$python" -m subword_nmt.learn_bpe -s "$vocab" >"$work/codes.bpe" 2>"$work/log" || {
            tail -n 5 -- "$work/log" >&2
            fail "subword-nmt could not learn the BPE"
        }
    fi
    mv -- "$work/codes.bpe" "$dest/codes.bpe"
}

step_bpe() {
    local split lang
    mkdir -p -- "$dest/bpe"
    for split in "${splits[@]}"; do
        for lang in "$source" "$target"; do
            if [ -e "$dest/bpe/$split.$lang" ]; then
                note "  $split.$lang: done before"
            else
                in_parts "$dest/tok/$split.$lang" "$dest/bpe/$split.$lang" \
                    "$python" -m subword_nmt.apply_bpe -c "$dest/codes.bpe"
            fi
        done
    done
}

step_binarise() {
    local split tests='' path
    for split in "${splits[@]}"; do
        case $split in test*) tests=${tests:+$tests,}$dest/bpe/$split ;; esac
    done
    # In a folder of its own: fairseq-preprocess refuses to write where a dictionary already lies.
    quietly "$work/log" "$python" -m fairseq_cli.preprocess --joined-dictionary \
        --source-lang "$source" --target-lang "$target" ${dict:+--srcdict "$dict"} \
        --trainpref "$dest/bpe/train" --validpref "$dest/bpe/valid" --testpref "$tests" \
        --destdir "$work/bin" --workers "$workers"
    for path in "$work/bin/"*.txt "$work/bin/"*.bin "$work/bin/"*.idx; do
        mv -- "$path" "$dest/"
    done
}

# --- the whole recipe ---

# What the data were made from and how: another run into the same folder must agree with it.
settings() {
    local path option key
    echo "recipe $name"
    echo "merges $vocab"
    echo "smoke ${smoke:-no}"
    echo "max_tokens $max_tokens"
    echo "max_ratio $max_ratio"
    echo "codes ${codes:+$(checksum "$codes")}"
    echo "dict ${dict:+$(checksum "$dict")}"
    for option in ${own_options[@]+"${own_options[@]}"} \
        ${own_switches[@]+"${own_switches[@]}"}; do
        key=${option#--}
        key=${key//-/_}
        echo "$key ${!key}"
    done
    for path in "${inputs[@]}"; do
        echo "input $(checksum "$path") ${path#"$from"/}"
    done
}

print_checksums() {
    local kind file sum want known=0 other=0 unknown=0
    while read -r kind sum file; do
        [ "$kind" = input ] || continue
        want=$(known_checksum "$file")
        case $want in
            '') unknown=$((unknown + 1)) ;;
            "$sum") known=$((known + 1)) ;;
            *) other=$((other + 1)) && note "$file differs from the published file" ;;
        esac
    done <"$1"
    note "checksums: $known agree, $other differ, $unknown without one to compare with"
}

# A command that fails (a broken archive, a full disk) prints its own error; this adds what to do.
on_exit() {
    local status=$?
    rm -rf -- "$work"
    if [ "$status" -eq 0 ] || [ "$status" -eq 2 ] || [ "$status" -gt 128 ]; then return; fi
    note "stopped, for the reason above; the same command goes on from here: $dest"
    exit 2
}

prepare() {
    local path split lang how=learn raw_text=() tok_text=() text=() bpe_text=() binary=()
    if [ -n "$codes" ]; then how=take; fi
    if [ -n "$from" ]; then
        find_inputs
        for path in "${inputs[@]}"; do need_file "$path" "input file"; done
    fi
    claim_dest "$dest"
    if [ -n "$mode" ]; then find_inputs; fi
    work=$dest/.work
    trap on_exit EXIT
    rm -rf -- "$work"
    mkdir -- "$work"
    settings >"$work/settings"
    settle "$dest" "$work/settings"
    print_checksums "$dest/settings"
    for split in "${splits[@]}"; do
        for lang in "$source" "$target"; do
            raw_text+=(".text/raw/$split.$lang")
            tok_text+=(".text/tok/$split.$lang")
            text+=("raw/$split.$lang" "tok/$split.$lang")
            bpe_text+=("bpe/$split.$lang")
            binary+=("$split.$source-$target.$lang".{bin,idx})
        done
    done
    if ! is_done text "${text[@]}"; then # if it is, its input is gone
        step raw "[1/6] raw text" step_raw "${raw_text[@]}"
        step tok "[2/6] tokenise" step_tok "${tok_text[@]}"
    fi
    step text "[3/6] clean up" step_text "${text[@]}"
    rm -rf -- "$dest/.text"
    step codes "[4/6] $how the BPE" step_codes codes.bpe
    step bpe "[5/6] split by BPE" step_bpe "${bpe_text[@]}"
    step binarise "[6/6] binarise" step_binarise "dict.$source.txt" "dict.$target.txt" \
        "${binary[@]}"
    note "done: $dest"
}
