# shellcheck shell=bash
# Functions that the scripts share; sourced, not run.
set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="${FLOATER_PYTHON:-$ROOT/.venv/bin/python}"
DRY_RUN="${DRY_RUN:-0}"

# Prints the help of a script: the comment at its head.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# A message for the person who waits.
say() { printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2; }

# die SENTENCE: something failed that is no fault of the command line.
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# has PYTHON PACKAGES...: they are installed there; looked for and not imported, which takes seconds.
has() {
    "$1" -c 'import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, sys.argv[1:]))' "${@:2}" 2>/dev/null
}

dry() { [[ $DRY_RUN == 1 ]]; }

# run COMMAND...: shows a command as one could type it, then runs it. In a dry run only shows it, on stdout.
run() {
    local words
    printf -v words '%q ' "$@"
    if dry; then printf '%s\n' "${words% }" && return; fi
    say "+ ${words% }"
    stoppable "$@"
}

# stoppable COMMAND...: runs a command. A signal that stops the script goes on to the command, which may want to save
# first; then the script ends with 143. Bash by itself would leave the command running.
stoppable() {
    local child status=0
    "$@" &
    child=$!
    # SIGINT too becomes SIGTERM: a command behind & ignores SIGINT.
    trap 'kill -TERM "$child" || true; wait "$child" || true; say "Told to stop: run the same command to go on."; exit 143' \
        TERM INT
    wait "$child" || status=$?
    trap - TERM INT
    return "$status"
}

# Makes sure that PYTHON has fairseq and this plugin; asked once for a script and those it calls. From here on Python
# finds this clone's package, not another copy that is installed or lies where the script was called.
ensure_setup() {
    local root
    if [[ ${FLOATER_SET_UP:-} != "$PYTHON" ]]; then
        if dry; then
            has "$PYTHON" fairseq_floater || die "Run scripts/setup.sh first: a dry run installs nothing."
        else
            bash "$ROOT/scripts/setup.sh" || exit $?
        fi
        export FLOATER_SET_UP=$PYTHON
    fi
    root=$(cd -P -- "$ROOT" && pwd)
    [[ :${PYTHONPATH:-}: == ":$root:"* ]] || export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONSAFEPATH=1
}

# read_flags WORDS...: prints the help and ends, or notes that this is a dry run.
read_flags() {
    local word
    for word in "$@"; do
        if [[ $word == -h || $word == --help ]]; then usage && exit; fi
        if [[ $word == --dry-run ]]; then DRY_RUN=1; fi
    done
}

# enter MODULE WORDS...: prints the help, or becomes the command of Python that does the work.
enter() {
    read_flags "${@:2}"
    ensure_setup
    exec "$PYTHON" -m "$@"
}
