#!/usr/bin/env bash
# Make binarised fairseq data from raw parallel text.
# bash scripts/prepare_text.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter prepare "$@"
