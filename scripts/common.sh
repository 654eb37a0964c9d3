# shellcheck shell=bash
# What every script here begins with; sourced, not run.
set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="${FLOATER_PYTHON:-$ROOT/.venv/bin/python}"
DRY_RUN="${DRY_RUN:-0}"

# A message for the person who waits.
say() {
  printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2
}

# die SENTENCE: something failed that is no fault of the command line.
die() {
  # shellcheck disable=SC2034  # protocol.sh keeps it
  FAILURE=$*
  printf '%s\n' "$*" >&2
  exit 1
}

# usage_error SENTENCE: the command line is wrong.
usage_error() {
  printf '%s (see %s --help)\n' "$*" "$0" >&2
  exit 2
}

# check_config FILE: the CONFIG of a command line is there.
check_config() {
  [[ -n $1 ]] || usage_error "a CONFIG is needed."
  [[ -f $1 ]] || die "There is no configuration $1."
}

# check_processes N: --processes is a number, or was not given.
check_processes() {
  [[ -z $1 || $1 =~ ^[0-9]+$ ]] || usage_error "--processes must be a number, but is $1."
}

# as_paths NAME...: a folder whose name begins with a dash is given on as ./-name, or it would be an option.
as_paths() {
  local name
  for name in "$@"; do
    if [[ ${!name} == -* ]]; then printf -v "$name" './%s' "${!name}"; fi
  done
}

# read_words NAME: fills an array with the lines of stdin as `floater args` writes them (\n is a newline in a word).
read_words() {
  local -n words=$1
  local i
  mapfile -t words
  for i in "${!words[@]}"; do printf -v "words[i]" '%b' "${words[i]}"; done
}

# A command as one could type it.
quoted() {
  local words
  printf -v words '%q ' "$@"
  printf '%s' "${words% }"
}

# run COMMAND...: shows a command, then runs it. In a dry run only shows it, on stdout.
run() {
  if [[ $DRY_RUN == 1 ]]; then
    printf '%s\n' "$(quoted "$@")"
    return
  fi
  say "+ $(quoted "$@")"
  stoppable "$@"
}

# aside COMMAND...: run, for a command whose results are mere progress here.
aside() {
  if dry; then run "$@"; else run "$@" >&2; fi
}

dry() { [[ $DRY_RUN == 1 ]]; }

# put PART FILE: what was written as PART is FILE from now on; on the disk first, so that FILE is never half there.
put() {
  if ! sync "$1" || ! mv "$1" "$2"; then die "$2 could not be written."; fi
}

# stoppable COMMAND...: runs a command. A signal that stops the script goes on to the command, which may want
# to save first; when it has ended the script ends with 143. Bash by itself would leave the command running.
stoppable() {
  local child status stopped=""
  "$@" &
  child=$!
  # SIGINT too becomes SIGTERM: a command behind & ignores SIGINT.
  trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
  while true; do
    status=0
    wait "$child" || status=$?
    # A trapped signal ends the waiting, not the command.
    kill -0 "$child" 2>/dev/null || break
  done
  trap - TERM INT
  if [[ -n $stopped ]]; then
    say "Told to stop: run the same command to go on."
    exit 143
  fi
  return "$status"
}

PROGRESS='train_inner|valid on|position (encoder|flow)|WARNING|[Ee]rror|done training|told to stop'

# logged NAME LOG COMMAND...: runs a command with its whole output in LOG (appended to) and the lines
# that show progress, marked with NAME, on the screen. A failure is in FAILURE, and ends the script (set -e).
logged() {
  local name=$1 log=$2
  shift 2
  if dry; then
    run "$@"
    return
  fi
  printf '+ %s\n' "$(quoted "$@")" >>"$log"
  local output reader status=0
  exec {output}> >(
    # These read on to the end: a command that is told to stop may have more to say.
    trap '' TERM INT
    tee -a "$log" |
      sed -u -nE "/$PROGRESS/ { s/^[^|]*[|] [A-Z]+ [|] //; s/^(.{0,150}).*/[${name//[!A-Za-z0-9._-]/_}] \\1/p }" >&2
  )
  reader=$!
  stoppable "$@" >&"$output" 2>&1 || status=$?
  exec {output}>&-
  wait "$reader" || true
  ((status == 0)) && return
  # shellcheck disable=SC2034  # protocol.sh keeps it
  FAILURE="$name: the command failed; see the end of $log."
  printf '%s\n' "$FAILURE" >&2
  return 1
}

# side_by_side N FUNCTION LINE...: calls FUNCTION with the words of each LINE, N of them at a time.
side_by_side() {
  local limit=$1 function=$2 running=0 failed=0 line words
  shift 2
  # shellcheck disable=SC2046  # process numbers
  trap 'kill -TERM $(jobs -p) 2>/dev/null || true; wait; exit 143' TERM INT
  for line in "$@"; do
    read -r -a words <<<"$line"
    if dry; then
      "$function" "${words[@]}"
      continue
    fi
    if ((running == limit)); then
      wait -n || failed=1
      running=$((running - 1))
    fi
    ((failed == 0)) || break
    "$function" "${words[@]}" &
    running=$((running + 1))
  done
  for (( ; running > 0; running--)); do wait -n || failed=1; done
  trap - TERM INT
  return "$failed"
}

# The GPUs that a program started here would see, one a line.
visible_gpus() {
  if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | sed '/^ *$/d'
  elif command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep '^[0-9]' || true
  fi
}

count_gpus() { visible_gpus | wc -l; }

# use_gpus N: what is started from here on sees the first N GPUs alone. fairseq takes all that it sees, and with
# --cpu starts a process for each: the tokens of an update would not be those that are recorded.
use_gpus() {
  local there
  there=$(count_gpus)
  (($1 <= there)) || die "--processes $1, but this machine shows $there GPUs; --cpu is for processes without one."
  CUDA_VISIBLE_DEVICES=$(visible_gpus | head -n "$1" | paste -sd, -)
  export CUDA_VISIBLE_DEVICES
}

# Makes sure that PYTHON has fairseq and this plugin; asked once for a script and those it calls. From here on Python
# finds this clone's package, not another copy that is installed or lies where the script was called.
ensure_setup() {
  local root
  if [[ ${FLOATER_SET_UP:-} != "$PYTHON" ]]; then
    if dry; then # looked for and not imported, which takes seconds
      "$PYTHON" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("fairseq_floater") is None)' \
        2>/dev/null || die "Run scripts/setup.sh first: a dry run installs nothing."
    else
      bash "$ROOT/scripts/setup.sh" || exit $?
    fi
    export FLOATER_SET_UP=$PYTHON
  fi
  root=$(cd -P -- "$ROOT" && pwd)
  [[ :${PYTHONPATH:-}: == ":$root:"* ]] || export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONSAFEPATH=1
}
