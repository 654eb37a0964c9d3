#!/usr/bin/env bash
# Install everything into .venv in the order that works; a second run does nothing.
#
# usage: bash scripts/setup.sh [--help]
#
# Makes .venv with torch, fairseq (compiled, two minutes), this package (editable) and the tools for its tests.
# The rest of the time is the download: torch for Linux from PyPI brings some gigabytes of CUDA libraries.
#
# FLOATER_PYTHON=PYTHON   use this environment instead; it is checked, and nothing is installed
# FLOATER_BASE_PYTHON=PYTHON   make .venv with this Python, e.g. python3.13
# FLOATER_TORCH=SPEC      torch to install, e.g. a build for your CUDA
# FLOATER_FAIRSEQ=SPEC    fairseq to build: a folder, an archive or git+https://...; patched for newer Pythons if needed
# example: bash scripts/setup.sh && .venv/bin/floater info

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
TORCH=${FLOATER_TORCH:-torch==2.13.0}
FAIRSEQ=${FLOATER_FAIRSEQ:-fairseq-fixed==0.12.3.1}
FAIRSEQ_SHA256=c607577a54ab30e2ee0f0b0a754ea5cdbc6ad0a9f99a1726638a2201445bc1cc # of fairseq-fixed 0.12.3.1

if [[ ${1:-} == -h || ${1:-} == --help ]]; then usage && exit; fi
if (($#)); then usage >&2 && exit 2; fi

# ready PYTHON: succeeds if PYTHON has all that is needed.
ready() { has "$1" torch fairseq torchdiffeq sacrebleu fairseq_floater; }

if [[ -n ${FLOATER_PYTHON:-} ]]; then
    ready "$FLOATER_PYTHON" && exit 0
    die "FLOATER_PYTHON=$FLOATER_PYTHON lacks torch, fairseq, torchdiffeq, sacrebleu or fairseq_floater: install what is missing there, or unset it."
fi

stamp=$ROOT/.venv/.floater-setup
wanted=$(cat "$ROOT"/setup.py "$ROOT"/scripts/{setup.sh,fairseq.txt,mend_fairseq.py} | cksum)-$TORCH-$FAIRSEQ
is_done() { [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && ready "$PYTHON"; }
if is_done; then exit; fi # before the lock: the checkout may be read-only

# Two scripts started at once must not install into the environment at the same time.
exec 9>"$ROOT/.setup.lock"
if command -v flock >/dev/null; then flock 9; fi
if is_done; then exit; fi

find_python() {
    local fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
    for candidate in ${FLOATER_BASE_PYTHON:-python3.12 python3.11 python3.13 python3.14 python3}; do
        if "$candidate" -c "$fits" 2>/dev/null; then command -v "$candidate" && return; fi
    done
    die "Python 3.11 to 3.14 is needed (with its venv module); none was found. Set FLOATER_BASE_PYTHON to one."
}

command -v c++ >/dev/null || command -v g++ >/dev/null ||
    die "A C++ compiler is needed to build fairseq; install one (e.g. g++) and run this again."

# An environment without pip is left if Python lacked ensurepip (python3-venv).
if ! "$PYTHON" -m pip --version &>/dev/null; then
    base=$(find_python)
    say "making .venv with $base ($("$base" --version))"
    "$base" -m venv "$ROOT/.venv"
fi
# Without its headers the build would fail, after gigabytes of download.
has_headers='import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
"$PYTHON" -c "$has_headers" ||
    die "The headers of $("$PYTHON" --version) are needed to build fairseq; install them (e.g. python3-dev) and run this again."
pip() { "$PYTHON" -m pip --quiet --disable-pip-version-check "$@"; }

# Build fairseq against the installed torch. A build in isolation would fetch another one.
say "installing $TORCH and what building fairseq needs"
# shellcheck disable=SC2086  # FLOATER_TORCH may contain options of pip
pip install $TORCH cython setuptools wheel
pip install --no-build-isolation --no-deps --require-hashes --requirement "$ROOT/scripts/fairseq.txt"
say "building $FAIRSEQ (about two minutes), and installing fairseq_floater meanwhile"
pip install --no-build-isolation --editable "${ROOT}[wmt14,roberta,page,dev]" &
installing=$!
# The usual flags, but no debugging symbols: they take a third of the time.
flags="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("CFLAGS"))') -g0"
build() { CFLAGS=${CFLAGS:-$flags} CXXFLAGS=${CXXFLAGS:-$flags} pip install --no-build-isolation --no-deps "$@"; }
if [[ -n ${FLOATER_FAIRSEQ:-} ]]; then
    build "$FAIRSEQ"
else
    build --requirement <(echo "$FAIRSEQ --hash=sha256:$FAIRSEQ_SHA256")
fi
"$PYTHON" "$ROOT/scripts/mend_fairseq.py"
wait "$installing"

"$PYTHON" -c 'import fairseq_floater, fairseq_floater.cli' >/dev/null 2>&1 ||
    die "the installation is incomplete: $("$PYTHON" -c 'import fairseq_floater.cli' 2>&1 | tail -n 1)"
printf '%s' "$wanted" >"$stamp"
say "ready: $ROOT/.venv/bin/floater --help"
