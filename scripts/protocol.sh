#!/usr/bin/env bash
# The paper's protocol for one system: donor, warm start, training on, averaging, generation, scores.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

usage() {
    cat <<'EOF'
usage: bash scripts/protocol.sh CONFIG --encoder E [options] [-- options of the model]

Trains the plain Transformer of CONFIG (once, shared by all systems), starts E from it, trains on at
half the peak rate, averages the last checkpoints, translates and scores every test set. A step
whose result is whole is skipped; a killed run goes on where it was.

  --encoder E     floater, sinusoidal, learned, rnn, rotation_flow, none; or plain: average and score the donor itself
  --blocks B      all (default) or input
  --target T      qkv or hidden (default: qkv for floater, hidden for the others)
  --scratch       train from random parameters instead of the donor (`budget: scratch`)
  --no-base       without fairseq's sinusoid underneath
  --losses        also the teacher-forced loss of every test sentence (losses.<test>.txt)
  --seed N        of training (default: the configuration's)
  --raw DIR       your parallel text (train, valid and test* files); not for the built-in corpus
  --data DIR      data that prepare_text.sh has made, instead of making them; WMT14's are made there if need be
  --mirror PLACE, --rehearsal   of prepare_wmt14.sh, where CONFIG is of WMT14
  --work DIR      where everything goes (default: work/<name of CONFIG>)
  --donor DIR     the donor's folder (default: <work>/plain); trained there if it is not, with CONFIG's seed
  --processes N   GPUs of a node (default: all of this machine; 0 is the CPU)
  --cpu           the N processes are CPU processes
  --no-fp16       full precision on GPUs
  --nodes N       train on N nodes, by torchrun: --launch COMMAND starts the words after it once on each node
                  ("srun --ntasks-per-node=1"), --rendezvous HOST:PORT is a free port of one of them
  --dry-run       print every command, run none

Tokens an update are the configuration's on any number of GPUs (--update-freq). SIGTERM saves a checkpoint first.

examples:
  bash scripts/protocol.sh configs/text_tiny.yaml --raw my_text --encoder floater --blocks all
  bash scripts/protocol.sh configs/numbers_en_de.yaml --encoder rnn -- --rnn-layers 2 --rnn-input vector
EOF
}

CONFIG="" ENCODER="" BLOCKS=all TARGET="" SCRATCH="" NO_BASE="" MODEL_OPTIONS="" LOSSES=""
RAW="" DATA="" WORK="" PROCESSES="" SEED="" DONOR="" NODES=1 LAUNCH="" RENDEZVOUS="" MIRROR=""
MACHINES=() REHEARSAL=()
while (($#)); do
    case $1 in
    --encoder | --blocks | --target | --seed | --raw | --data | --work | --donor | --mirror | --processes | --nodes | --launch | --rendezvous)
        (($# >= 2)) || usage_error "$1 needs a value."
        name=${1#--}
        name=${name//-/_}
        printf -v "${name^^}" '%s' "$2"
        shift
        ;;
    --scratch) SCRATCH=--scratch ;;
    --no-base) NO_BASE=--no-base ;;
    --losses) LOSSES=yes ;;
    --cpu | --no-fp16) MACHINES+=("$1") ;;
    --rehearsal) REHEARSAL=(--rehearsal) ;;
    --dry-run) DRY_RUN=1 ;;
    --)
        shift
        MODEL_OPTIONS=$*
        break
        ;;
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
as_paths RAW DATA WORK DONOR MIRROR
[[ -n $ENCODER ]] || usage_error "--encoder is needed."
check_processes "$PROCESSES"
[[ $NODES =~ ^[1-9][0-9]*$ ]] || usage_error "--nodes must be a number of at least 1, but is $NODES."
if ((NODES > 1)) && [[ -z $LAUNCH || -z $RENDEZVOUS ]]; then
    usage_error "--nodes $NODES needs --launch and --rendezvous."
fi
ensure_setup

WORK=${WORK:-work/$(basename "$CONFIG" .yaml)}
PROCESSES=${PROCESSES:-$(count_gpus)}
if ! dry; then
    if [[ " ${MACHINES[*]:-} " == *" --cpu "* ]]; then use_gpus 0; else use_gpus "$PROCESSES"; fi
fi
MACHINES+=(--processes "$PROCESSES" --nodes "$NODES")
READY_DATA=$DATA
DATA=${DATA:-$WORK/data}
SHARED_DONOR=()
if [[ -n $DONOR ]]; then SHARED_DONOR=(--donor "$DONOR"); fi
DONOR=${DONOR:-$WORK/plain}
# With an x after it: $( ) cuts newlines off the end, which a name may have.
DONOR_PARENT=$(dirname "$DONOR" && printf x)
DONOR_PARENT=${DONOR_PARENT%$'\n'x}
RUN_OPTIONS=(--encoder "$ENCODER" --blocks "$BLOCKS" "--model-options=$MODEL_OPTIONS")
if [[ -n $TARGET ]]; then RUN_OPTIONS+=(--target "$TARGET"); fi
if [[ -n $SCRATCH ]]; then RUN_OPTIONS+=("$SCRATCH"); fi
if [[ -n $NO_BASE ]]; then RUN_OPTIONS+=("$NO_BASE"); fi
if [[ -n $SEED ]]; then RUN_OPTIONS+=(--seed "$SEED"); fi
if [[ $ENCODER == plain && -z $SCRATCH ]]; then STAGE=donor; elif [[ -n $SCRATCH ]]; then STAGE=scratch; else STAGE=finetune; fi

# One Python start writes the arguments of every stage; they stay in the run's folder as a record.
STAGING=$(mktemp -d)
trap 'rm -rf "$STAGING"' EXIT
"$PYTHON" -m fairseq_floater args "$CONFIG" settings "${RUN_OPTIONS[@]}" --data "$DATA/bin" \
    --work "$WORK" "${SHARED_DONOR[@]}" "${MACHINES[@]}" --write-all "$STAGING" >/dev/null || exit $?
declare -A SETTING
while IFS='=' read -r key value; do SETTING[$key]=$value; done <"$STAGING/settings.args"
RUN_DIR=$WORK/${SETTING[name]}
if [[ $STAGE == donor ]]; then RUN_DIR=$DONOR; fi
read -r -a TESTS <<<"${SETTING[tests]}"

# arguments STAGE: fills ARGS with the stage's arguments, which may hold spaces.
arguments() {
    [[ -f $STAGING/$1.args ]] || die "$CONFIG has no stage $1."
    read_words ARGS <"$STAGING/$1.args"
}

prepare_data() {
    local raw=$RAW
    if [[ -n $READY_DATA ]]; then
        [[ -z $RAW ]] || usage_error "--data is for data that are made, --raw for text to make them of."
        # WMT14's data are made where they are wanted, if they are not there.
        if [[ -z ${SETTING[wmt14]} || (-f $DATA/wmt14.json && -d $DATA/bin) ]]; then
            dry || check_data
            return
        fi
    fi
    if [[ -f $STAGING/numbers.args ]]; then
        [[ -z $RAW ]] || usage_error "$CONFIG makes its own corpus; --raw is for your text."
        raw=$WORK/numbers
        arguments numbers
        aside "$PYTHON" -m fairseq_floater numbers "$raw" "${ARGS[@]}"
    fi
    if [[ -n ${SETTING[wmt14]} && -z $raw ]]; then
        local options=(--out "$DATA" --bpe "${SETTING[bpe]}" --vocab "${SETTING[vocab]}" "${REHEARSAL[@]}")
        if [[ -n $MIRROR ]]; then options+=(--mirror "$MIRROR"); fi
        aside bash "$ROOT/scripts/prepare_wmt14.sh" "${SETTING[wmt14]}" "${options[@]}"
        return
    fi
    if [[ -z $raw ]]; then
        [[ -d $DATA/bin ]] || usage_error "$CONFIG is for your text: pass its folder with --raw."
        return
    fi
    arguments prepare
    run bash "$ROOT/scripts/prepare_text.sh" "$raw" "$DATA" "${ARGS[@]}"
}

# check_data: ready data are whole, and what CONFIG describes.
check_data() {
    [[ -d $DATA/bin ]] || die "$DATA holds no binarised data (bin)."
    "$PYTHON" -m fairseq_floater.experiments.run_folder data "$DATA" "$STAGING/settings.args" "${REHEARSAL[@]}" ||
        die "$DATA is not for $CONFIG."
}

# field FILE KEY...: a value of a JSON file.
field() {
    "$PYTHON" -m fairseq_floater.experiments.run_folder field "$@" 2>/dev/null
}

average_checkpoints() {
    local folder=$1
    if [[ -f $folder/average.json ]]; then
        same_settings "$folder" average average_of
        return
    fi
    local which=(--last "${SETTING[average]}")
    if [[ ${SETTING[average_of]} == updates ]]; then which+=(--updates); fi
    say "$(basename "$folder"): averaging checkpoints (the last ${SETTING[average]})"
    aside "$PYTHON" -m fairseq_floater average --inputs "$folder/checkpoints" "${which[@]}" \
        --output "$folder/average.pt" --force --json "$folder/average.json"
}

warm_start() {
    if [[ ! -f $RUN_DIR/warm_start.json ]]; then
        arguments warm-start
        say "${SETTING[name]}: warm start from the donor's best checkpoint"
        run mkdir -p "$RUN_DIR"
        aside "$PYTHON" -m fairseq_floater warm-start "$DONOR/checkpoints/checkpoint_best.pt" \
            "$RUN_DIR/warm_start.pt" --force --json "$RUN_DIR/warm_start.json" "${ARGS[@]}"
    fi
    if [[ ! -f $RUN_DIR/before.json ]]; then
        arguments validate
        say "${SETTING[name]}: validation loss before the first update"
        logged "${SETTING[name]}" "$RUN_DIR/before.log" "$PYTHON" -m fairseq_cli.validate "${ARGS[@]}" \
            --path "$RUN_DIR/warm_start.pt" --valid-subset valid
        if ! dry; then
            "$PYTHON" -m fairseq_floater.experiments.run_folder validation "$RUN_DIR/before.log" "$RUN_DIR/before.json"
        fi
    fi
}

# translate_and_score TEST: generation outside of scoring, scoring outside of generation.
# generate STAGE TEST OUTPUT: fairseq-generate's output of a test set, whole or not at all.
generate() {
    local stage=$1 test=$2 output=$3 subset=$2 log=${3%.txt}.log
    dry || same_arguments "$stage" "$RUN_DIR"
    if [[ -f $output ]]; then return; fi
    dry || keep_arguments "$stage" "$RUN_DIR"
    arguments "$stage"
    dry || subset=$(subset_of "$test")
    local command=("$PYTHON" -m fairseq_cli.generate "${ARGS[@]}" --path "$RUN_DIR/average.pt" --gen-subset "$subset")
    say "${SETTING[name]}: $(basename "$output")"
    if dry; then
        run "${command[@]}"
        return
    fi
    stoppable "${command[@]}" >"$output.part" 2>"$log" ||
        die "${SETTING[name]}: fairseq-generate failed on $test; see the end of $log."
    put "$output.part" "$output"
}

translate_and_score() {
    local test=$1
    local output=$RUN_DIR/generate.$test.txt
    if [[ -n $LOSSES ]]; then generate score-reference "$test" "$RUN_DIR/losses.$test.txt"; fi
    generate generate "$test" "$output"
    if [[ -f $RUN_DIR/scores.$test.json ]]; then return; fi
    aside "$PYTHON" -m fairseq_floater score "$output" --references "$DATA/raw/$test.${SETTING[target]}" \
        --target-lang "${SETTING[target]}" --json "$RUN_DIR/scores.$test.json"
}

# subset_of TEST: fairseq's name of a test set (test, test1, ...), as prepare_text.sh wrote it down.
subset_of() {
    field "$DATA/tests.json" "$1" ||
        die "$DATA/tests.json knows no test set $1 (the \`data: tests\` of $CONFIG)."
}

# Data and donor are shared: a system started beside this one waits for them. locked FILE COMMAND...
locked() {
    local lock=$1 name=${1##*/}
    shift
    if dry || ! command -v flock >/dev/null; then
        "$@"
        return
    fi
    # What is started holds the lock too: a training that outlives a killed script is not begun twice.
    {
        if ! flock --nonblock 8; then
            say "Another run is making what this one needs ($name): waiting for it."
            stoppable flock 8 9>&-
        fi
        "$@"
    } 8>"$lock"
}

# leave: what every end of this script, but a killed one, leaves behind for `table2.sh --status`.
leave() {
    local code=$?
    rm -rf "$STAGING"
    # 143: told to stop; it goes on with the next run.
    if ((code != 0 && code != 143)); then printf '%s\n' "${FAILURE:-exit code $code}" >"$RUN_DIR/failed"; fi
}

if ! dry; then
    mkdir -p "$RUN_DIR" 2>/dev/null || die "The folder $RUN_DIR cannot be made."
    exec 9>"$RUN_DIR/.lock"
    # A moment: `table2.sh --status` may just be looking.
    if command -v flock >/dev/null && ! flock --timeout 2 9; then
        say "Another protocol.sh is at work on $RUN_DIR."
        exit 75
    fi
    trap leave EXIT
    rm -f "$RUN_DIR/failed" "$RUN_DIR/done"
    mkdir -p "$WORK" "$DONOR_PARENT"
fi
export FLOATER_SAVE_ON_SIGTERM=1
locked "$WORK/.data.lock" prepare_data
donor_lock=$DONOR_PARENT/.donor.lock
case $STAGE in
donor) locked "$donor_lock" train donor "$DONOR" ;;
finetune)
    locked "$donor_lock" train donor "$DONOR"
    warm_start
    train finetune "$RUN_DIR"
    ;;
scratch) train scratch "$RUN_DIR" ;;
esac
# What was trained with is said when it was trained: a later look from another machine changes nothing.
if ! dry && [[ ! -f $RUN_DIR/settings.args ]]; then keep_arguments settings "$RUN_DIR"; fi
average_checkpoints "$RUN_DIR"
for test in "${TESTS[@]}"; do translate_and_score "$test"; done
if dry; then exit 0; fi
touch "$RUN_DIR/done"
say "${SETTING[name]}: done; everything is in $RUN_DIR"
