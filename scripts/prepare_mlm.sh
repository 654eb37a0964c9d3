#!/usr/bin/env bash
# Make fairseq's data for masked-LM training from WikiText-103, which it downloads, or from your own text.
# usage: bash scripts/prepare_mlm.sh OUT --bpe gpt2|sentencepiece [options] [--dry-run]

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
prepares mlm wikitext -- "$@"
run "${tool[@]}" text "${options[@]}"
words=$("${tool[@]}" words "${options[@]}")
mapfile -t prepare <<<"$words"
run "$PYTHON" -m fairseq_floater mlm prepare "${prepare[@]}"
