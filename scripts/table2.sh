#!/usr/bin/env bash
# Run the 24 cells of the paper's Table 2, and print the table beside the paper's numbers.
# bash scripts/table2.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-table2 "$@"
