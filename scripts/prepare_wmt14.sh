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
# Downloads resume, and complete outputs are not made again: after a break, run the same command. Cleaning:
# 1 to 250 subwords a side, at most 1.5 times as many on one side as on the other. En-De takes 1.7 GB of downloads
# and about 7 GB of disk, En-Fr 6.7 GB and about 55 GB.
# example: bash scripts/prepare_wmt14.sh en-de --out data/wmt14-en-de

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

read_flags "$@"
words=()
for word in "$@"; do [[ $word == --dry-run ]] || words+=("$word"); done
ensure_setup

tool=("$PYTHON" -m fairseq_floater.data.wmt14.recipe)
archives=$("${tool[@]}" archives "${words[@]}")
fetch_all "$archives"
for step in corpus text report; do run "${tool[@]}" "$step" "${words[@]}"; done
