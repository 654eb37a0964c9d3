#!/usr/bin/env bash
# All tests. Sets itself up first.
#
# usage: bash scripts/test.sh [PYTEST OPTIONS]
# Runs every test but those marked slow (about ten minutes on two cores).
# example: bash scripts/test.sh -k contract
#          bash scripts/test.sh -m slow

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

read_flags "$@"
ensure_setup
cd "$ROOT"
# Tests run modules of their own folders.
unset PYTHONSAFEPATH
# One thread a process: the models are tiny, and two workers share the cores.
export OMP_NUM_THREADS=1
workers=$(getconf _NPROCESSORS_ONLN)
if ((workers > 8)); then workers=8; fi
select=(-m "not slow")
if [[ " $* " == *" -m "* ]]; then select=(); fi
exec "$PYTHON" -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "${select[@]}" "$@"
