#!/usr/bin/env bash
# Tables 3 to 5 of the paper: GLUE, RACE and SQuAD with RoBERTa and with FLOATER in it, beside the paper's numbers.
#
# usage: bash scripts/tables345.sh [--only CELLS] [--status | --list | --table] [options]
#
# 38 cells under five seeds each, one run after the other. Text, data, donor and flow stage are made by the first that
# needs them; what another one is at is left to it, what is finished is skipped. Ends with the table.
#   --only CELLS    comma-separated names or patterns: glue-base-rte-floater, 'glue-base-*', 'squad*'
#   --list          print the names of the cells, one a line, and do nothing
#   --status        what is done, running, failed, broken off, not begun
#   --table         print the table of what is done
#   --seeds 1,2,3   of fine-tuning (default: 1,2,3,4,5)
#   --donors DIR    roberta_base.pt and roberta_large.pt (`floater import-roberta`), dict.txt beside them
#   --config FILE   the tasks of one configuration of yours instead, with both systems; its donor: --donor FILE
#   --configs DIR   where roberta_<size>.yaml are (default: configs)
#   --raw DIR, --bpe-dir DIR, --mirror PLACE    of finetune.sh, as are those of processes, GPUs, nodes and --dry-run
# example: bash scripts/tables345.sh --config configs/roberta_tiny.yaml --work work/roberta_tiny --seeds 1,2

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.roberta.cells "$@"
