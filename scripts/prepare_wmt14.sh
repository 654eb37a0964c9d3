#!/usr/bin/env bash
# WMT14 En-De or En-Fr from nothing to binarised data, by the paper's recipe.
#
# usage: bash scripts/prepare_wmt14.sh en-de|en-fr --out DIR [options]
#
# WMT14's training text, newstest2014 (full, 3,003 lines) for test, and every 100th (En-De) or 1,333rd (En-Fr)
# line held out for validation, as fairseq's recipe has it (the authors' README: `--icml17`). DIR gets
#
#   archives/      what was downloaded, each archive with its checksum
#   corpus/        the raw text of train, valid and test
#   bpe/ or spm/   the text in subwords; bpe.codes or spm.model, dict.txt
#   raw/           the raw lines of valid and test, for scoring
#   bin/           what fairseq-train takes
#   wmt14.json     counts, beside the published ones
#
# options:
#   --bpe KIND      subword-nmt on Moses tokens (default: the recipe's), or sentencepiece on raw text
#   --vocab N       merges, or subwords of both languages (default: 40000, as the recipe)
#   --valid SET     held-out (default) or newstest2013
#   --mirror PLACE  take the archives from this URL (http, https, file) or folder, by their file names; nothing
#                   else is tried. Copy them there on a machine with a network where this one has none.
#   --rehearsal     the archives are not the published ones: record their checksums, compare no counts
#   --workers N     processes (the number of cores, at most 16)
#   --force         make the data anew where DIR was made with other settings
#   --dry-run       print the commands and run none
#
# Downloads resume, and outputs that are whole are not made again: after a break, run the same command. Cleaning:
# 1 to 250 subwords a side, at most 1.5 times as many on one side as on the other. En-De takes 1.7 GB of downloads
# and about 7 GB of disk, En-Fr 6.7 GB and about 55 GB.
#
# example: bash scripts/prepare_wmt14.sh en-de --out data/wmt14-en-de

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# curl's own retries throw away the bytes of the call that they belong to: only a young call retries, and
# `download` resumes where an older one broke off.
CURL=(curl -fL -C - --retry 10 --retry-max-time 60 --connect-timeout 30 --speed-limit 1 --speed-time 30
    --proto "=http,https,file" --proto-redir "=http,https")
if [[ ! -t 2 ]]; then CURL+=(-sS); fi

# download URL FILE: resumes for as long as there is progress.
download() {
    local part=$2.part best=0 failures=0 size status
    until run "${CURL[@]}" --output "$part" --url "$1"; do
        status=$?
        size=$(stat -c %s "$part" 2>/dev/null || printf 0)
        failures=$((size > best ? 0 : failures + 1))
        best=$((size > best ? size : best))
        case $status in
        1 | 3 | 22 | 23 | 37) failures=5 ;; # a bad URL, an answer of HTTP, a full disk, no such file
        33 | 36) rm -f "$part" ;;           # the server cannot go on from there: start over
        esac
        ((failures < 5)) || die "${2##*/} could not be fetched from $1 ($size bytes are kept); run the same command" \
            "to go on, or name another place that holds it by --mirror (a URL or a folder)."
        sleep "$failures"
    done
    # On the disk first, so that the archive is never half there.
    if ! sync "$part" || ! mv "$part" "$2"; then die "$2 could not be written."; fi
}

# is_whole SHA256 MD5 FILE: FILE has the published checksums. Where none is published (-), it has the one of its first
# download, which is kept in FILE.sha256. A FILE that is older than that record is not read again.
is_whole() {
    local sha256=$1 file=$3 record=$3.sha256 recorded="" found
    if [[ -f $record ]]; then read -r recorded _ <"$record"; fi
    if [[ $2 != - ]]; then
        md5sum --check --status <<<"$2  $file" || return
    elif [[ $1 == - ]]; then
        sha256=${recorded:--}
    fi
    if [[ $sha256 == "$recorded" && ! $file -nt $record ]]; then return; fi
    found=$(sha256sum <"$file")
    [[ $sha256 == - || $sha256 == "${found%% *}" ]] || return
    printf '%s  %s\n' "${found%% *}" "${file##*/}" >"$record"
}

# fetch URL SHA256 MD5 FILE: leaves FILE whole and checked. One that is wrong is fetched once more.
fetch() {
    local url=$1 file=$4 attempt
    if dry; then
        [[ -f $file ]] || run "${CURL[@]}" --output "$file" --url "$url"
        return
    fi
    for attempt in 1 2; do
        [[ -f $file ]] || download "$url" "$file"
        if is_whole "$2" "$3" "$file"; then return; fi
        mv -f "$file" "$file.wrong"
        say "${file##*/} has another checksum than it must have: set aside as $file.wrong (attempt $attempt of 2)."
    done
    die "${file##*/} from $url must have the SHA-256 $2 and the MD5 $3 (-: none is published; then that of" \
        "$file.sha256), but has others; try another --mirror."
}

read_flags "$@"
words=()
for word in "$@"; do [[ $word == --dry-run ]] || words+=("$word"); done
ensure_setup

tool=("$PYTHON" -m fairseq_floater.data.wmt14.recipe)
archives=$("${tool[@]}" archives "${words[@]}")
if ! dry; then
    read -r _ _ _ folder <<<"$archives"
    folder=${folder%/*}
    mkdir -p "$folder" 2>/dev/null || die "The folder $folder cannot be made."
    exec 9>"${folder%/*}/.lock"
    if command -v flock >/dev/null && ! flock --nonblock 9; then
        say "Another prepare_wmt14.sh is at work on ${folder%/*}: waiting for it."
        stoppable flock 9
    fi
fi
while read -r url sha256 md5 file; do fetch "$url" "$sha256" "$md5" "$file"; done <<<"$archives"
for step in corpus text report; do run "${tool[@]}" "$step" "${words[@]}"; done
