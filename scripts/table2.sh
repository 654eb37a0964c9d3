#!/usr/bin/env bash
# Table 2 of the paper: its 24 cells, one run each, and the table beside the paper's numbers.
# bash scripts/table2.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-table2 "$@"
