#!/usr/bin/env bash
# Text for masked-LM training from nothing to fairseq's data: WikiText-103, or your own.
#
# usage: bash scripts/prepare_mlm.sh OUT [--text DIR] --bpe gpt2|sentencepiece [options]
#
# Fetches WikiText-103 (raw, 192 MB) and GPT-2's BPE into OUT.archives/, then runs `floater mlm prepare`.
#   --text DIR      your text instead: train.txt, valid.txt and test.txt if there are any (or .gz); a paragraph a line, an
#                   empty line between documents
#   --bpe KIND      gpt2, which RoBERTa uses, or sentencepiece, learned from the text (--vocab N)
#   --bpe-dir DIR   encoder.json and vocab.bpe that are there, instead of fetching them
#   --dict FILE     dict.txt of the pretrained model (default with gpt2: fairseq's, fetched)
#   --mirror PLACE  take all files from this URL (http, https, file) or folder only, by their file names
#   --rehearsal     the text is not the published one: record its checksum
#   --dry-run       print the commands and run none
# Downloads resume, and complete outputs are not made again: after a break, run the same command.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

read_flags "$@"
words=()
for word in "$@"; do [[ $word == --dry-run ]] || words+=("$word"); done
ensure_setup
tool=("$PYTHON" -m fairseq_floater.data.wikitext)
archives=$("${tool[@]}" archives "${words[@]}")
fetch_all "$archives"
run "${tool[@]}" text "${words[@]}"
mapfile -t prepare < <("${tool[@]}" words "${words[@]}")
run "$PYTHON" -m fairseq_floater mlm prepare "${prepare[@]}"
