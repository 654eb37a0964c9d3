#!/usr/bin/env bash
# Run the tests. Sets up the environment first.
#
# usage: bash scripts/test.sh [PYTEST OPTIONS]
# Runs every test not marked slow. Its first run installs other implementations to compare with (setup.py's "oracles").
# example: bash scripts/test.sh -k contract
#          bash scripts/test.sh -m slow

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then usage && exit; fi
ensure_setup
if [[ -n ${FLOATER_USER_DIR:-} ]]; then
    FLOATER_USER_DIR=$(realpath -s -- "$FLOATER_USER_DIR")
fi
cd "$ROOT"
# setup.sh does not install these: transformers alone takes 130 MB, and training does not need it.
if [[ -z ${FLOATER_PYTHON:-} ]] && ! has "$PYTHON" transformers x_transformers; then
    say "installing other people's encoders, which ours are compared with"
    "$PYTHON" -m pip --quiet --disable-pip-version-check install --no-build-isolation --editable "${ROOT}[oracles]" ||
        say "they could not be installed: tests that compare with them are skipped"
fi
# Tests run modules from their own folders.
unset PYTHONSAFEPATH
# Container images often set it. Every process would then compile the tests and the package anew.
unset PYTHONDONTWRITEBYTECODE
# One thread per process: the models are tiny, and the workers share the cores.
export OMP_NUM_THREADS=1
workers=$(getconf _NPROCESSORS_ONLN)
if ((workers > 8)); then workers=8; fi
select=(-m "not slow")
if [[ " $* " == *" -m "* ]]; then select=(); fi
exec "$PYTHON" -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "${select[@]}" "$@"
