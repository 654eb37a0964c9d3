#!/usr/bin/env bash
# WMT14 En-De or En-Fr from nothing to binarised data, by the paper's recipe: downloads that resume, then the steps.
# usage: bash scripts/prepare_wmt14.sh en-de|en-fr --out DIR [options] [--dry-run]

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
prepares wmt14 -- "$@"
for step in corpus text report; do run "${tool[@]}" "$step" "${options[@]}"; done
