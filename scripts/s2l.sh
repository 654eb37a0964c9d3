#!/usr/bin/env bash
# The short-to-long experiment: split by length, train every system on the short part, score by bins.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
usage: bash scripts/s2l.sh CONFIG [options]

Trains on sentences below a length and tests on longer ones, in bins (section `s2l` of CONFIG: threshold,
edges, systems): splits the text, trains each system under the same budget, translates, scores per bin
with intervals and paired comparisons. A step whose result is whole is skipped; run it again after a break.

  --seeds 1,2,3   train every system under each seed: means and spreads (default: the configuration's seed)
  --raw DIR       your parallel text (train, valid and test* files); not for the built-in corpus
  --work DIR      where everything goes (default: work/<name of CONFIG>)
  --processes N   GPUs for one training (default: all of this machine; 0 is the CPU)
  --jobs N        trainings side by side (default: 1 on GPUs, the number of cores, at most 4, on the CPU)
  --dry-run       print every command, run none

example: bash scripts/s2l.sh configs/numbers_s2l.yaml
EOF
}

CONFIG="" SEEDS="" RAW="" WORK="" PROCESSES="" JOBS=""
while (($#)); do
  case $1 in
  --seeds | --raw | --work | --processes | --jobs)
    (($# >= 2)) || usage_error "$1 needs a value."
    name=${1#--}
    printf -v "${name^^}" '%s' "$2"
    shift
    ;;
  --dry-run) DRY_RUN=1 ;;
  -h | --help)
    usage
    exit 0
    ;;
  -*) usage_error "unknown option $1." ;;
  *)
    [[ -z $CONFIG ]] || usage_error "one CONFIG, but $CONFIG and $1 were given."
    CONFIG=$1
    ;;
  esac
  shift
done
check_config "$CONFIG"
as_paths RAW WORK
[[ -z $SEEDS || $SEEDS =~ ^[0-9]+(,[0-9]+)*$ ]] || usage_error "--seeds must be numbers with commas, but is $SEEDS."
check_processes "$PROCESSES"
[[ -z $JOBS || $JOBS =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs must be a number of at least 1, but is $JOBS."
ensure_setup

WORK=${WORK:-work/$(basename "$CONFIG" .yaml)}
PROCESSES=${PROCESSES:-$(count_gpus)}
if [[ -z $JOBS ]]; then
  JOBS=1
  if ((PROCESSES == 0)); then
    JOBS=$(nproc 2>/dev/null || echo 1)
    ((JOBS <= 4)) || JOBS=4
  fi
fi
# Small models share one thread among cores badly; side by side they use them all.
if ((PROCESSES == 0 && JOBS > 1)); then export OMP_NUM_THREADS=1; fi
SPLIT=$WORK/split DATA=$WORK/data WORDS=()

# stage NAME: fills WORDS with the words of a stage of the experiment, or fails where it has none.
stage() {
  local text
  text=$("$PYTHON" -m fairseq_floater args "$CONFIG" "$1" --work "$WORK" --processes "$PROCESSES") || return
  read_words WORDS <<<"$text"
}

stage systems || exit $?
NAMES=() SYSTEMS=() LABELS=()
for line in "${WORDS[@]}"; do
  IFS=$'\t' read -r name label system <<<"$line"
  NAMES+=("$name")
  LABELS+=(--label "$name=$label")
  SYSTEMS+=("$system")
done
declare -A SETTING
stage settings || exit $?
for line in "${WORDS[@]}"; do SETTING[${line%%=*}]=${line#*=}; done
IFS=, read -r -a SEED_LIST <<<"${SEEDS:-${SETTING[seed]}}"
HAS_SHORT=no
if [[ " ${SETTING[tests]} " == *" test_short "* ]]; then HAS_SHORT=yes; fi

if [[ -z $RAW ]]; then
  stage numbers 2>/dev/null || usage_error "$CONFIG is for your text: pass its folder with --raw."
  RAW=$WORK/numbers
  aside "$PYTHON" -m fairseq_floater numbers "$RAW" "${WORDS[@]}"
fi
stage split || exit $?
dry || mkdir -p "$WORK"
run "$PYTHON" -m fairseq_floater s2l split "$RAW" "$SPLIT" "${WORDS[@]}"
stage prepare || exit $?
aside bash "$ROOT/scripts/prepare_text.sh" "$SPLIT" "$DATA" "${WORDS[@]}"

# one_system SEED OPTION...: the protocol for one system under one seed.
one_system() {
  local seed=$1 options=(--processes "$PROCESSES" --losses)
  shift
  if dry; then options+=(--dry-run); fi
  stoppable bash "$ROOT/scripts/protocol.sh" "$CONFIG" --work "$WORK/seed-$seed" --data "$DATA" --seed "$seed" \
    "${options[@]}" "$@"
}

lines=()
for seed in "${SEED_LIST[@]}"; do
  for system in "${SYSTEMS[@]}"; do lines+=("$seed $system"); done
done
side_by_side "$JOBS" one_system "${lines[@]}" ||
  die "The experiment stopped: a system above failed. Run it again to go on from there."

files=("${LABELS[@]}")
for seed in "${SEED_LIST[@]}"; do
  for name in "${NAMES[@]}"; do
    folder=$WORK/seed-$seed/$name
    files+=(--hypotheses "$name=$folder/generate.test.txt" --losses "$name=$folder/losses.test.txt")
    if [[ $HAS_SHORT == yes ]]; then
      files+=(--short "$name=$folder/generate.test_short.txt" --short-losses "$name=$folder/losses.test_short.txt")
    fi
  done
done
if [[ -n ${SETTING[baseline]} ]]; then files+=(--baseline "${SETTING[baseline]}"); fi
files+=(--max-len-a "${SETTING[max_len_a]}" --max-len-b "${SETTING[max_len_b]}")
table=$WORK/s2l.md.part
if dry; then table=/dev/stdout; fi
run "$PYTHON" -m fairseq_floater s2l score "$SPLIT" "${files[@]}" --json "$WORK/s2l.json" \
  --figure "$WORK/s2l.png" "$WORK/s2l.svg" >"$table"
if dry; then exit 0; fi
put "$table" "$WORK/s2l.md"
cat "$WORK/s2l.md"
longest=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["kept"]["train"]["longest_source"])' "$SPLIT/split.json")
cat <<EOF

Longest training source: $longest tokens. Rows of \`learned\` past the trained length were never trained.
Table   $WORK/s2l.md, $WORK/s2l.json
Figure  $WORK/s2l.png, $WORK/s2l.svg
Split   $SPLIT: counts and overlap in split.json, the origin of each test pair in test.tsv
Runs    $WORK/seed-<seed>/<system>
EOF
