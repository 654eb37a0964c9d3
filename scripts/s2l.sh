#!/usr/bin/env bash
# The short-to-long experiment: split by length, train every system on the short part, score by bins.
# bash scripts/s2l.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-s2l "$@"
