#!/usr/bin/env bash
# Tables 3 to 5 of the paper: GLUE, RACE and SQuAD with RoBERTa and with FLOATER in it.
# bash scripts/tables345.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-tables345 "$@"
