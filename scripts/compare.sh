#!/usr/bin/env bash
# Compare position encoders on the same data, updates and seeds; scores with intervals, p-values and ranks.
# bash scripts/compare.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-compare "$@"
