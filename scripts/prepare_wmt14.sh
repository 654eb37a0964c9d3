#!/usr/bin/env bash
# Make binarised data of WMT14 En-De or En-Fr by the paper's recipe, from the downloads on. Broken downloads resume.
# usage: bash scripts/prepare_wmt14.sh en-de|en-fr --out DIR [options] [--dry-run]

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
prepares wmt14 -- "$@"
for step in corpus text report; do run "${tool[@]}" "$step" "${options[@]}"; done
