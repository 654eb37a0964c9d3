#!/usr/bin/env bash
# Text for masked-LM training from nothing to fairseq's data: WikiText-103, or your own.
# usage: bash scripts/prepare_mlm.sh OUT --bpe gpt2|sentencepiece [options] [--dry-run]

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
prepares mlm wikitext -- "$@"
run "${tool[@]}" text "${options[@]}"
mapfile -t prepare < <("${tool[@]}" words "${options[@]}")
run "$PYTHON" -m fairseq_floater mlm prepare "${prepare[@]}"
