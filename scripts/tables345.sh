#!/usr/bin/env bash
# Run the cells of the paper's Tables 3 to 5: GLUE, RACE and SQuAD, with RoBERTa and with FLOATER in RoBERTa.
# bash scripts/tables345.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-tables345 "$@"
