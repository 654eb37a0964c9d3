#!/usr/bin/env bash
# Run the short-to-long experiment: split text by length, train each system on the short part, score by bins.
# bash scripts/s2l.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-s2l "$@"
