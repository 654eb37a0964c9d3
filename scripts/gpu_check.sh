#!/usr/bin/env bash
# Check the plugin on a GPU: contract tests, short trainings in each precision, translations, benchmarks.
# bash scripts/gpu_check.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read_flags "$@"
ensure_setup
exec "$PYTHON" -m benchmarks gpu-check "$@"
