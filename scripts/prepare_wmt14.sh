#!/usr/bin/env bash
# WMT14 En-De or En-Fr from nothing to binarised data, by the paper's recipe.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'EOF'
usage: bash scripts/prepare_wmt14.sh en-de|en-fr --out DIR [options]

WMT14's training text, newstest2014 (full, 3,003 lines) for test, and every 100th (En-De) or 1,333rd (En-Fr)
line held out for validation, as fairseq's recipe has it (the authors' README: `--icml17`). DIR gets

  archives/      what was downloaded, with checksums.json
  corpus/        the raw text of train, valid and test
  bpe/ or spm/   the text in subwords; bpe.codes or spm.model, dict.txt
  raw/           the raw lines of valid and test, for scoring
  bin/           what fairseq-train takes
  wmt14.json     counts, beside the published ones

options:
  --bpe KIND      subword-nmt on Moses tokens (default: the recipe's), or sentencepiece on raw text
  --vocab N       merges, or subwords of both languages (default: 40000, as the recipe)
  --valid SET     held-out (default) or newstest2013
  --mirror PLACE  take the archives from this URL (http, https, file) or folder, by their file names; nothing
                  else is tried. Copy them there on a machine with a network where this one has none.
  --rehearsal     the archives are not the published ones: record their checksums, compare no counts
  --workers N     processes (the number of cores, at most 16)
  --force         make the data anew where DIR was made with other settings
  --dry-run       print the commands and run none
  --help

Downloads resume, and what is whole is not made again: after a break, run the same command. Cleaning: 1 to 250
subwords a side, at most 1.5 times as many on one side as on the other. En-De takes 1.7 GB of downloads and about
7 GB of disk, En-Fr 6.7 GB and about 55 GB.

example: bash scripts/prepare_wmt14.sh en-de --out data/wmt14-en-de
EOF
}

PAIR="" OUT="" BPE=subword-nmt VOCAB=40000 VALID=held-out MIRROR="" REHEARSAL=no WORKERS="" FORCE=no
while (($#)); do
    case $1 in
    --*=*)
        set -- "${1%%=*}" "${1#*=}" "${@:2}"
        continue
        ;;
    --out | --bpe | --vocab | --valid | --mirror | --workers)
        (($# >= 2)) || usage_error "$1 needs a value."
        name=${1#--}
        printf -v "${name^^}" '%s' "$2"
        shift
        ;;
    --rehearsal) REHEARSAL=yes ;;
    --force) FORCE=yes ;;
    --dry-run) DRY_RUN=1 ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*) usage_error "unknown option $1." ;;
    *)
        [[ -z $PAIR ]] || usage_error "one language pair, but $PAIR and $1 were given."
        PAIR=$1
        ;;
    esac
    shift
done
[[ $PAIR == en-de || $PAIR == en-fr ]] || usage_error "the language pair must be en-de or en-fr, but is '$PAIR'."
[[ -n $OUT ]] || usage_error "--out is needed."
as_paths OUT MIRROR
[[ $VALID == held-out || $VALID == newstest2013 ]] || usage_error "--valid must be held-out or newstest2013, but is $VALID."
[[ $BPE == subword-nmt || $BPE == sentencepiece ]] || usage_error "--bpe must be subword-nmt or sentencepiece, but is $BPE."
[[ $VOCAB =~ ^[1-9][0-9]*$ ]] || usage_error "--vocab must be a number of at least 1, but is $VOCAB."
[[ -z $WORKERS || $WORKERS =~ ^[1-9][0-9]*$ ]] || usage_error "--workers must be a number of at least 1, but is $WORKERS."
if [[ -z $WORKERS ]]; then
    WORKERS=$(nproc 2>/dev/null || echo 1)
    ((WORKERS <= 16)) || WORKERS=16
fi
ensure_setup

tool=("$PYTHON" -m fairseq_floater.data.wmt14.recipe)
sources=(--valid "$VALID")
if [[ -n $MIRROR ]]; then sources+=(--mirror "$MIRROR"); fi
if [[ $REHEARSAL == yes ]]; then sources+=(--rehearsal); fi
prepare=("$OUT/corpus" "$OUT" --src en --tgt "${PAIR#en-}" --bpe "$BPE" --vocab "$VOCAB"
    --max-len 250 --max-ratio 1.5 --workers "$WORKERS")
if [[ $FORCE == yes ]]; then prepare+=(--force); fi
if dry; then prepare+=(--dry-run); fi

if ! dry; then
    mkdir -p "$OUT" 2>/dev/null || die "The folder $OUT cannot be made."
    exec 9>"$OUT/.lock"
    if command -v flock >/dev/null && ! flock --nonblock 9; then
        say "Another prepare_wmt14.sh is at work on $OUT: waiting for it."
        stoppable flock 9
    fi
fi
run "${tool[@]}" corpus "$PAIR" "$OUT" "${sources[@]}"
# A dry run has no text to look at: the command itself is shown.
if dry; then
    run bash "$ROOT/scripts/prepare_text.sh" "${prepare[@]}"
else
    aside bash "$ROOT/scripts/prepare_text.sh" "${prepare[@]}"
fi
run "${tool[@]}" report "$PAIR" "$OUT"
