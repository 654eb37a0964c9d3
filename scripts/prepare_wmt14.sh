#!/usr/bin/env bash
# WMT14 En-De or En-Fr from nothing to binarised data, by the paper's recipe.
#
# usage: bash scripts/prepare_wmt14.sh en-de|en-fr --out DIR [options]
#
# WMT14's training text, newstest2014 (full, 3,003 lines) for test, and every 100th (En-De) or 1,333rd (En-Fr)
# line held out for validation, as fairseq's recipe has it (the authors' README: `--icml17`). DIR gets
#
#   archives/   what was downloaded, with its checksums; corpus/ has the raw text of train, valid and test
#   bin/        what fairseq-train takes, and raw/, bpe/ or spm/ as prepare_text.sh makes them
#   wmt14.json  counts, beside the published ones
#
# options:
#   --bpe KIND      subword-nmt on Moses tokens (default: the recipe's), or sentencepiece on raw text
#   --vocab N       merges, or subwords of both languages (default: 40000, as the recipe)
#   --valid SET     held-out (default) or newstest2013
#   --mirror PLACE  take the archives from this URL (http, https, file) or folder only, by their file names
#   --rehearsal     the archives are not the published ones: record their checksums, compare no counts
#   --workers N     processes (the number of cores, at most 16)
#   --force         make the data anew where DIR was made with other settings
#   --dry-run       print the commands and run none
#
# Downloads resume, and outputs that are whole are not made again: after a break, run the same command. Cleaning:
# 1 to 250 subwords a side, at most 1.5 times as many on one side as on the other. En-De takes 1.7 GB of downloads
# and about 7 GB of disk, En-Fr 6.7 GB and about 55 GB.
# example: bash scripts/prepare_wmt14.sh en-de --out data/wmt14-en-de

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# curl's own retries throw away the bytes of the call that they belong to: only a young call retries, and
# `download` resumes where an older one broke off.
CURL=(curl -fL -C - --retry 10 --retry-max-time 60 --connect-timeout 30 --speed-limit 1 --speed-time 30
    --proto "=http,https,file" --proto-redir "=http,https")
if [[ ! -t 2 ]]; then CURL+=(-sS); fi

# download URL PART NAME: resumes for as long as there is progress.
download() {
    local best=0 failures=0 size status
    until run "${CURL[@]}" --output "$2" --url "$1"; do
        status=$?
        size=$(stat -c %s "$2" 2>/dev/null || printf 0)
        failures=$((size > best ? 0 : failures + 1))
        best=$((size > best ? size : best))
        case $status in
        1 | 3 | 22 | 23 | 37) failures=5 ;; # a bad URL, an answer of HTTP, a full disk, no such file
        33 | 36) rm -f "$2" ;;              # the server cannot go on from there: start over
        esac
        ((failures < 5)) || die "$3 could not be fetched from $1 ($size bytes are kept); run the same command" \
            "to go on, or name another place that holds it by --mirror (a URL or a folder)."
        sleep "$failures"
    done
}

# fetch URL SHA256 MD5 FILE: an archive gets its name when its checksum is right. Where none is published (-), that of
# its first download is kept in FILE.sha256. One that is wrong is fetched once more.
fetch() {
    local url=$1 sha256=$2 md5=$3 file=$4 part=$4.part found attempt
    if [[ -f $file ]]; then return; fi
    if dry; then run "${CURL[@]}" --output "$file" --url "$url" && return; fi
    if [[ $sha256$md5 == -- && -f $file.sha256 ]]; then read -r sha256 _ <"$file.sha256"; fi
    for attempt in 1 2; do
        download "$url" "$part" "${file##*/}"
        found=$(sha256sum <"$part")
        if [[ $sha256 == - || $sha256 == "${found%% *}" ]] &&
            { [[ $md5 == - ]] || md5sum --check --status <<<"$md5  $part"; }; then
            printf '%s  %s\n' "${found%% *}" "${file##*/}" >"$file.sha256"
            sync "$part" && mv "$part" "$file" && return
            die "$file could not be written."
        fi
        mv -f "$part" "$file.wrong"
        say "${file##*/} has another checksum than it must have: set aside as $file.wrong (attempt $attempt of 2)."
    done
    die "${file##*/} from $url must have the SHA-256 $sha256 and the MD5 $md5 (-: none is known), but has others;" \
        "try another --mirror."
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
