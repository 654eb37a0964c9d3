#!/usr/bin/env bash
# The main job on the built-in corpus: five systems through the protocol, a table and a figure.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'EOF'
usage: bash scripts/demo.sh [--work DIR] [--dry-run]

English -> German number words, from nothing to a table in under ten minutes on two cores:
  plain                              fairseq's own Transformer: the donor of the three below, and,
                                     being trained from random parameters under a sinusoid, the
                                     control of equal updates for the last
  floater-all-qkv                    FLOATER, all blocks, started from the donor and trained on
  sinusoidal-input-hidden            the donor trained on for the same updates
  learned-all-hidden                 learned tables, started from the donor, the same updates
  floater-all-hidden-scratch-nobase  FLOATER alone, no sinusoid, from random parameters
Scored on lines of trained length and on longer ones. A second run skips what is whole.
EOF
}

CONFIG=$ROOT/configs/numbers_en_de.yaml WORK=work/demo
PASS_ON=()
while (($#)); do
  case $1 in
  --work)
    (($# >= 2)) || usage_error "--work needs a value."
    WORK=$2
    shift
    ;;
  --dry-run)
    DRY_RUN=1
    PASS_ON=(--dry-run)
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) usage_error "unknown option $1." ;;
  esac
  shift
done
as_paths WORK
ensure_setup

system() { stoppable bash "$ROOT/scripts/protocol.sh" "$CONFIG" --work "$WORK" "${PASS_ON[@]}" "$@"; }

# Two systems side by side, one thread each: the models are too small to share one among cores.
export OMP_NUM_THREADS=1
side_by_side 2 system \
  "--encoder plain" \
  "--encoder floater --target hidden --no-base --scratch" \
  "--encoder floater" \
  "--encoder sinusoidal --blocks input" \
  "--encoder learned" ||
  die "The demo stopped: a system above failed. Run it again to go on from there."
run "$PYTHON" -m fairseq_floater table "$WORK" --figure "$WORK/scores.png" --json "$WORK/results.json"
dry || cat <<EOF

plain is fairseq's sinusoidal Transformer from random parameters: the donor, and the control of equal updates
for floater-all-hidden-scratch-nobase; the other three trained on from it for equal updates.

Figure      $WORK/scores.png
Results     $WORK/results.json
Each system $WORK/<system>: checkpoints, average.pt, train.log, the arguments of every stage (*.args),
            generate.<test>.txt, scores.<test>.json
Data        $WORK/numbers (raw), $WORK/data (subword model, binarised)
EOF
