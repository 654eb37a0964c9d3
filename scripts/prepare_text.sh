#!/usr/bin/env bash
# From raw parallel text to binarised fairseq data.
# bash scripts/prepare_text.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter prepare "$@"
