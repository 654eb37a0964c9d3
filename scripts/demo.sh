#!/usr/bin/env bash
# Train and score five systems on the built-in corpus; write a table, a figure and a page.
# bash scripts/demo.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-demo "$@"
