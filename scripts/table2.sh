#!/usr/bin/env bash
# Table 2 of the paper: its 24 cells, one run each, and the table beside the paper's numbers.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'EOF'
usage: bash scripts/table2.sh [--only CELLS] [--status | --list | --donors | --table] [options]

Runs cells of Table 2 (WMT14 En-De and En-Fr, base and big, six encoder settings) one after the other: data and
donor of a column once, then warm start, training on, averaging, translation and scores of each row. Any order, any
number of machines with a shared folder: what another one is at is left to it, what is whole is skipped, and a killed
run goes on where it was. Ends with the table.

  --only CELLS    comma-separated names or patterns: base-en-de-floater-all, 'big-en-fr-*', '*-floater-*'
  --donors        train the four donors instead (--only 'base-en-de-*' picks); average and score them too
  --list          print the names of the cells, one a line, and do nothing
  --status        what is done, running, failed, broken off, not begun
  --table         print the table of what is done
  --seeds 1,2,3   every cell under each seed, from the same donor (default: 1)
  --work DIR      everything goes there (default: work/table2)
  --configs DIR   where wmt14_<pair>_<size>.yaml are (default: configs; for a rehearsal in miniature)
  --mirror PLACE, --rehearsal                    of prepare_wmt14.sh
  --processes N, --cpu, --no-fp16, --nodes N, --launch COMMAND, --rendezvous HOST:PORT    of protocol.sh
  --dry-run       print every command of the cells, run none

examples:
  bash scripts/table2.sh --only 'base-en-de-*'                    # a column on this machine's GPUs
  bash scripts/table2.sh --only big-en-fr-floater-all --dry-run
  bash scripts/table2.sh --status
EOF
}

ONLY="" SEEDS=1 WORK=work/table2 CONFIGS=$ROOT/configs ACTION=run DONORS=no
RUN_OPTIONS=()
while (($#)); do
    case $1 in
    --only | --seeds | --work | --configs)
        (($# >= 2)) || usage_error "$1 needs a value."
        name=${1#--}
        printf -v "${name^^}" '%s' "$2"
        shift
        ;;
    --mirror | --processes | --nodes | --launch | --rendezvous)
        (($# >= 2)) || usage_error "$1 needs a value."
        RUN_OPTIONS+=("$1" "$2")
        shift
        ;;
    --cpu | --no-fp16 | --rehearsal) RUN_OPTIONS+=("$1") ;;
    --donors) DONORS=yes ;;
    --status | --list | --table) ACTION=${1#--} ;;
    --dry-run)
        DRY_RUN=1
        RUN_OPTIONS+=(--dry-run)
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) usage_error "unknown option $1." ;;
    esac
    shift
done
[[ $SEEDS =~ ^[0-9]+(,[0-9]+)*$ ]] || usage_error "--seeds must be numbers with commas, but is $SEEDS."
as_paths WORK CONFIGS
ensure_setup

selected=(--only "$ONLY")
if [[ $DONORS == yes ]]; then selected+=(--donors); fi
case $ACTION in
status) exec "$PYTHON" -m fairseq_floater.experiments.table2 status --work "$WORK" --seeds "$SEEDS" --only "$ONLY" ;;
table) exec "$PYTHON" -m fairseq_floater table "$WORK" --paper --json "$WORK/table2.json" ;;
esac
text=$("$PYTHON" -m fairseq_floater.experiments.table2 cells "${selected[@]}") || exit $?
mapfile -t CELLS <<<"$text"
if [[ $ACTION == list ]]; then
    printf '%s\n' "${CELLS[@]%% *}"
    exit 0
fi

# one_cell NAME CONFIG ENCODER BLOCKS SEED
one_cell() {
    local config=$CONFIGS/$2.yaml column=$WORK/$2 encoder=$3 blocks=$4 seed=$5 pair=${2#wmt14_}
    pair=${pair%_*}
    local options=(--data "$WORK/data/${pair/_/-}" --donor "$column/plain" --work "$column/seed-$seed")
    if [[ $encoder != plain ]]; then options+=(--seed "$seed"); fi
    if dry; then printf '# %s\n' "$1"; fi
    say "== $1, seed $seed"
    stoppable bash "$ROOT/scripts/protocol.sh" "$config" --encoder "$encoder" --blocks "$blocks" "${options[@]}" "${RUN_OPTIONS[@]}"
}

IFS=, read -r -a SEED_LIST <<<"$SEEDS"
failed=() busy=()
for seed in "${SEED_LIST[@]}"; do
    for cell in "${CELLS[@]}"; do
        code=0
        # shellcheck disable=SC2086  # a line of four words
        one_cell $cell "$seed" || code=$?
        case $code in
        0) ;;
        75) busy+=("${cell%% *}") ;;
        130 | 143) exit "$code" ;;
        *) failed+=("${cell%% *}") ;;
        esac
    done
done
if ((${#busy[@]})); then say "Left to others that are at work on them: ${busy[*]}"; fi
if ((${#failed[@]})); then die "Failed: ${failed[*]} (bash scripts/table2.sh --status says why)."; fi
if dry; then exit 0; fi
if ! compgen -G "$WORK/*/*/settings.args" >/dev/null && ! compgen -G "$WORK/*/*/*/settings.args" >/dev/null; then
    say "Nothing is trained yet: no table."
    exit 0
fi
part=$(mktemp "$WORK/.table2.XXXXXX")
"$PYTHON" -m fairseq_floater table "$WORK" --paper --json "$WORK/table2.json" | tee "$part"
chmod 644 "$part"
put "$part" "$WORK/table2.md"
