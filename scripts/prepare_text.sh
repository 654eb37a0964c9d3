#!/usr/bin/env bash
# From raw parallel text to binarised fairseq data.
#
# usage: bash scripts/prepare_text.sh RAW_DIR OUT_DIR --src LANG --tgt LANG (--vocab N | --spm-model FILE) [options]
#
# RAW_DIR holds train.LANG, valid.LANG and any test*.LANG of both languages, one sentence a line,
# UTF-8, plain or .gz. OUT_DIR gets
#
#   bin/    what fairseq-train and fairseq-generate take; tests.json: the --gen-subset of each test split
#   raw/    the raw lines of valid and the test splits, line for line as in bin/, for scoring
#   spm/    the text in subwords (bpe/ with --bpe subword-nmt), its model beside it; dict.txt, summary.json
#
# options:
#   --src LANG, --tgt LANG   the languages, as in the file names
#   --vocab N                subwords of both languages together, to be learned
#   --bpe KIND               sentencepiece (default, on raw text), or subword-nmt: Moses tokens cut by a joint
#                            BPE of N merges, the preprocessing of the published WMT14 results
#   --spm-model FILE         a sentencepiece model to use instead (of `floater s2l split`, say)
#   --max-len N              drop train and valid pairs above N subwords on a side (250; 0 = keep)
#   --max-ratio R            drop train and valid pairs with one side R times the other (0 = keep)
#   --character-coverage C   share of characters that get a subword of their own (1.0)
#   --workers N              processes (the number of cores, at most 8)
#   --force                  start over where OUT_DIR was made from other text or settings
#   --dry-run                print the commands and run none
# Complete outputs are not made again: after a break, run the same command.
# example:
#   floater numbers numbers/raw
#   bash scripts/prepare_text.sh numbers/raw numbers/data --src en --tgt de --vocab 300

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.data.prepare all "$@"
