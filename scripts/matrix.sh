#!/usr/bin/env bash
# Installs and tests other versions of Python, torch and fairseq; a table says what was really run.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Python, torch, fairseq, and what must happen: tests pass, or the import is refused in one sentence.
# Without torch (-) fairseq is installed without what it needs: enough where Python itself is refused.
ROWS=(
  "3.11 torch==2.13.0 fairseq-fixed==0.12.3.1 tests"
  "3.12 torch==2.13.0 fairseq-fixed==0.12.3.1 tests"
  "3.11 torch==2.14.1 fairseq-fixed==0.12.3.1 tests"
  "3.11 torch==2.6.0 fairseq-fixed==0.12.3.1 tests" # the oldest that setup.py admits
  "3.11 torch==2.13.0 fairseq==0.12.2 refused"
  "3.10 - fairseq==0.12.2 refused"
  "3.9 - fairseq==0.12.2 refused"
)
# What a version of Python or torch could break, in some minutes.
TESTS="test_contract test_fairseq_compat test_ode test_rnn test_stretch test_warm_start test_stored test_requirements test_cli"

usage() {
  cat <<EOF
usage: bash scripts/matrix.sh --work DIR [--only ROWS] [--tests "FILES" | --all] [options]

Each row gets an environment of its own below DIR, with a copy of this checkout, and runs tests there; what cannot
be had is a row "not run" with the reason. A row that fails does not stop the others; the exit code is then 1.
An environment that is there is used again. The table is printed, and written to DIR/matrix.md.

  --work DIR           everything goes there, some GB; outside this checkout
  --only ROWS          comma-separated names or patterns: 'python3.12-*' (default: all; others keep their results)
  --tests "FILES"      files of tests/; default:
$(fold -s -w 90 <<<"$TESTS" | sed 's/^/                       /')
  --all                every test but those marked slow
  --workers N          test processes (default: one a core)
  --max-download MB    a row that pip would fetch more for is not run (default: 300)
  --list               print the names of the rows, and do nothing
  --dry-run            print the commands, run none

A Python is looked for as python3.12 on the PATH and in pyenv's folder.
example: bash scripts/matrix.sh --work /tmp/matrix --only 'python3.12-*' --max-download 4000
EOF
}

WORK="" ONLY="*" WORKERS="" MAX_DOWNLOAD=300 LIST=no
while (($#)); do
  case $1 in
  --work | --only | --tests | --workers | --max-download)
    (($# >= 2)) || usage_error "$1 needs a value."
    name=${1#--}
    name=${name//-/_}
    printf -v "${name^^}" '%s' "$2"
    shift
    ;;
  --all) TESTS="" ;;
  --list) LIST=yes ;;
  --dry-run) DRY_RUN=1 ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) usage_error "unknown option $1." ;;
  esac
  shift
done

# name_of PYTHON TORCH FAIRSEQ EXPECTED: of a row and its folder.
name_of() {
  local torch=-$2
  if [[ $2 == - ]]; then torch=""; fi
  printf '%s' "python$1${torch//==/}-${3//==/}"
}

# chosen NAME: one of the patterns of --only is the row's.
chosen() {
  local patterns pattern
  IFS=, read -r -a patterns <<<"$ONLY"
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053  # a pattern
    if [[ $1 == $pattern ]]; then return; fi
  done
  return 1
}

# find_python VERSION: prints one that can make environments.
find_python() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    # Not the name that was found: pyenv puts scripts of its own on the PATH.
    if "$candidate" -c "import ensurepip, sys; print(sys.executable)
sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      return
    fi
  done
  return 1
}

# fetch COMMAND...: runs pip, which announces what it downloads; once that is more than the limit, pip is ended,
# RESULT says so, and the status is 3.
fetch() {
  local line lines child status=0 size
  if dry; then
    run "$@"
    return
  fi
  say "+ $(quoted "$@")"
  exec {lines}< <(PYTHONUNBUFFERED=1 exec "$@" 2>&1)
  child=$!
  trap 'kill "$child" 2>/dev/null || true; exit 143' TERM INT
  while IFS= read -r line <&"$lines"; do
    printf '%s\n' "$line" >>"$FOLDER/install.log"
    [[ $line =~ Downloading\ ([^ ]+)\ \(([0-9]+)[0-9.]*\ ([MG])B\) ]] || continue
    size=${BASH_REMATCH[2]}
    if [[ ${BASH_REMATCH[3]} == G ]]; then size=$((size * 1000)); fi
    FETCHED=$((FETCHED + size))
    ((FETCHED > MAX_DOWNLOAD)) || continue
    kill "$child" 2>/dev/null || true
    RESULT="not run: pip would fetch more than $MAX_DOWNLOAD MB (${BASH_REMATCH[1]} has $size)"
    status=3
    break
  done
  exec {lines}<&-
  wait "$child" || status=$((status == 3 ? 3 : 1))
  trap - TERM INT
  return "$status"
}

# install BASE TORCH FAIRSEQ EXPECTED: the environment of a row.
install() {
  local base=$1 torch=$2 fairseq=$3 pip wanted
  pip=("$FOLDER/venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off)
  wanted="$(cksum <"$ROOT/setup.py") $("$base" --version) $*"
  if [[ -f $FOLDER/installed && $(<"$FOLDER/installed") == "$wanted" ]]; then return; fi
  run rm -rf "$FOLDER/venv" "$FOLDER/installed" "$FOLDER/install.log"
  run "$base" -m venv "$FOLDER/venv" || return
  if [[ $fairseq == fairseq==* ]]; then
    install_official "$torch" "$fairseq" || return
  else # the order of setup.sh
    fetch "${pip[@]}" "$torch" numpy cython setuptools wheel || return
    fetch "${pip[@]}" --no-build-isolation "$fairseq" || return
    fetch "${pip[@]}" --no-build-isolation --editable "$FOLDER/source[dev]" || return
  fi
  if ! dry; then printf '%s' "$wanted" >"$FOLDER/installed"; fi
}

# install_official TORCH FAIRSEQ: official fairseq, older than Cython 3, and before torch: where torch is there it
# wants to build what its archive lacks. What it needs it names in a form that newer pips refuse.
install_official() {
  fetch "${pip[@]}" numpy "cython<3" "setuptools<81" wheel || return
  fetch "${pip[@]}" --no-build-isolation --no-deps "$2" || return
  if [[ $1 == - ]]; then return; fi
  fetch "${pip[@]}" "$1" numpy regex sacrebleu tqdm bitarray cffi PyYAML || return
  fetch "${pip[@]}" --no-build-isolation "omegaconf<2.1" "hydra-core<1.1"
}

# copy_checkout: the files of this checkout, as they are now, without what git ignores.
copy_checkout() {
  mkdir -p "$FOLDER/source"
  # An editable installation looks here: files are replaced, and gone ones removed.
  find "$FOLDER/source" -mindepth 1 -maxdepth 1 ! -name '*.egg-info' -exec rm -rf {} +
  git -C "$ROOT" ls-files -z --cached --others --exclude-standard |
    tar -C "$ROOT" --null --ignore-failed-read -T - -cf - | tar -C "$FOLDER/source" -xf -
}

# run_tests: the tests of a row; RESULT is what pytest counted.
run_tests() {
  local words=() name found status=0
  for name in $TESTS; do
    found=$(find "$ROOT/tests" -name "$(basename "$name" .py).py" -printf '%P')
    words+=("tests/${found:-$name}")
  done
  if [[ -n $WORKERS ]]; then words+=(-n "$WORKERS"); fi
  local command=(env "FLOATER_PYTHON=$FOLDER/venv/bin/python" bash "$FOLDER/source/scripts/test.sh" "${words[@]}")
  if dry; then
    run "${command[@]}"
    return
  fi
  say "+ $(quoted "${command[@]}")"
  stoppable "${command[@]}" >"$FOLDER/tests.log" 2>&1 || status=$?
  RESULT=$(sed -nE 's/^=+ (.* in .*) =+$/\1/p' "$FOLDER/tests.log" | tail -n 1)
  RESULT="${RESULT:-failed: no result; see $FOLDER/tests.log} (${TESTS:-every test})"
  return "$status"
}

# check_refusal: importing the package, and pip where Python is too old, must say in a sentence what is needed.
check_refusal() {
  local python=$FOLDER/venv/bin/python said
  local import=(env "PYTHONPATH=$FOLDER/source" "$python" -c "import fairseq_floater")
  local install=("$python" -m pip install --no-deps --no-build-isolation "$FOLDER/source")
  if dry; then
    run "${import[@]}"
    return
  fi
  RESULT="failed: it was not refused in a sentence"
  said=$(cd / && "${import[@]}" 2>&1) && return 1
  said=${said##*$'\n'}
  [[ $said == *UnsupportedError:\ fairseq_floater\ needs* ]] || return 1
  if "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 11))'; then
    [[ $("${install[@]}" 2>&1) == *"requires a different Python"* ]] || return 1
  fi
  RESULT="refused, as it must be: \"${said#*: }\""
}

# installed DISTRIBUTION: its version in the environment of the row.
installed() {
  "$FOLDER/venv/bin/python" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' \
    "$1" 2>/dev/null
}

# one_row PYTHON TORCH FAIRSEQ EXPECTED: runs a row; RESULT is what the table says.
one_row() {
  local base status=0
  RESULT="" FETCHED=0
  if ! base=$(find_python "$1"); then
    RESULT="not run: there is no Python $1"
    return
  fi
  if ! dry; then copy_checkout; fi
  install "$base" "$2" "$3" "$4" || status=$?
  case $status in
  0) ;;
  3)
    rm -rf "$FOLDER/venv"
    return
    ;;
  *)
    RESULT="failed: the installation; see $FOLDER/install.log"
    return 1
    ;;
  esac
  if [[ $4 == tests ]]; then run_tests; else check_refusal; fi
}

# line_of PYTHON TORCH FAIRSEQ EXPECTED: the row's line of the table: the versions that were there, else the wanted.
line_of() {
  local python=$1 torch=${2#*==} fairseq=${3//==/ }
  if [[ $RESULT != "not run"* ]]; then
    python=$("$FOLDER/venv/bin/python" -c 'import platform; print(platform.python_version())' || printf '%s' "$1")
    torch=$(installed torch || printf '%s' "${2#*==}")
    fairseq="${3%%==*} $(installed "${3%%==*}" || printf '%s' "${3#*==}")"
  fi
  printf '| %s | %s | %s | %s | %(%F)T |\n' "$python" "$torch" "$fairseq" "$RESULT" -1
}

# table: the lines of all rows, also of those that an earlier call ran.
table() {
  local row words name
  printf '| Python | torch | fairseq | result | date |\n|---|---|---|---|---|\n'
  for row in "${ROWS[@]}"; do
    read -r -a words <<<"$row"
    name=$(name_of "${words[@]}")
    if [[ -f $WORK/$name/line ]]; then
      cat "$WORK/$name/line"
    else
      printf '| %s | %s | %s | not run: not asked for | |\n' "${words[0]}" "${words[1]#*==}" "${words[2]//==/ }"
    fi
  done
}

[[ $MAX_DOWNLOAD =~ ^[0-9]+$ ]] || usage_error "--max-download must be a number, but is $MAX_DOWNLOAD."
[[ -z $WORKERS || $WORKERS =~ ^[0-9]+$ ]] || usage_error "--workers must be a number, but is $WORKERS."
if [[ $LIST == no ]]; then
  [[ -n $WORK ]] || usage_error "--work is needed."
  WORK=$(realpath -m -- "$WORK")
  if [[ $WORK/ == "$ROOT"/* ]]; then usage_error "--work must be outside of $ROOT."; fi
fi

failed=() found=no
for row in "${ROWS[@]}"; do
  read -r -a words <<<"$row"
  name=$(name_of "${words[@]}")
  chosen "$name" || continue
  found=yes
  if [[ $LIST == yes ]]; then
    printf '%s\n' "$name"
    continue
  fi
  FOLDER=$WORK/$name
  say "== $name"
  if ! dry; then mkdir -p "$FOLDER"; fi
  one_row "${words[@]}" || failed+=("$name")
  if dry; then continue; fi
  line_of "${words[@]}" >"$FOLDER/line"
done
[[ $found == yes ]] || usage_error "--only names no row."
if [[ $LIST == yes ]] || dry; then exit 0; fi
table | tee "$WORK/matrix.md"
if ((${#failed[@]})); then die "Failed: ${failed[*]} (logs in $WORK/<row>)."; fi
