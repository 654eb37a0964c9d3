#!/usr/bin/env bash
# From raw parallel text to binarised fairseq data.
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'EOF'
usage: bash scripts/prepare_text.sh RAW_DIR OUT_DIR --src LANG --tgt LANG --vocab N [options]
       bash scripts/prepare_text.sh RAW_DIR OUT_DIR --src LANG --tgt LANG --spm-model FILE [options]

RAW_DIR holds train.LANG, valid.LANG and any test*.LANG of both languages, one sentence a line,
UTF-8, plain or .gz. OUT_DIR gets

  bin/          what fairseq-train and fairseq-generate take
  raw/          the raw lines of valid and the test splits, line for line as in bin/, for scoring
  spm/          the text in subwords (bpe/ with --bpe subword-nmt)
  spm.model     the sentencepiece model of both languages (bpe.codes)
  dict.txt      the dictionary of both languages
  tests.json    which --gen-subset of fairseq-generate each test split is
  summary.json  counts

options:
  --src LANG, --tgt LANG   the languages, as in the file names
  --vocab N                subwords of both languages together, to be learned
  --bpe KIND               sentencepiece (default, on raw text), or subword-nmt: Moses tokens cut by a joint
                           BPE of N merges, the preprocessing of the published WMT14 results
  --spm-model FILE         a sentencepiece model to use instead (of `floater s2l split`, say)
  --max-len N              drop train and valid pairs above N subwords on a side (250; 0 = keep)
  --max-ratio R            drop train and valid pairs with one side R times the other (0 = keep)
  --character-coverage C   share of characters that get a subword of their own (1.0)
  --workers N              processes (the number of cores, at most 8)
  --force                  start over where OUT_DIR was made from other text or settings
  --dry-run                print the commands and run none
  --help

What is whole is not made again: after a break, run the same command.

example:
  floater numbers numbers/raw
  bash scripts/prepare_text.sh numbers/raw numbers/data --src en --tgt de --vocab 300
EOF
}

places=()
options=()
src='' tgt='' bpe=sentencepiece vocab='' spm_model='' workers='' force=0
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --force)
            force=1
            shift
            continue
            ;;
        --dry-run)
            DRY_RUN=1
            shift
            continue
            ;;
        --*=*)
            set -- "${1%%=*}" "${1#*=}" "${@:2}"
            continue
            ;;
        --src | --tgt | --vocab | --spm-model | --workers | --bpe | --max-len | --max-ratio | --character-coverage)
            (($# > 1)) || usage_error "$1 needs a value"
            ;;
        -*)
            usage_error "There is no option $1"
            ;;
        *)
            places+=("$1")
            shift
            continue
            ;;
    esac
    case $1 in
        --src) src=$2 ;;
        --tgt) tgt=$2 ;;
        --vocab) vocab=$2 ;;
        --bpe) bpe=$2 ;;
        --spm-model) spm_model=$2 ;;
        --workers) workers=$2 ;;
        *) options+=("$1" "$2") ;;
    esac
    shift 2
done

as_paths spm_model
((${#places[@]} == 2)) || usage_error "RAW_DIR and OUT_DIR are needed, but ${#places[@]} given"
[[ -n $src && -n $tgt ]] || usage_error "--src and --tgt are needed"
if [[ -n $vocab && -n $spm_model ]]; then usage_error "--vocab and --spm-model exclude each other"; fi
if [[ -n $vocab ]]; then
    options=(--vocab "$vocab" "${options[@]}")
elif [[ -n $spm_model ]]; then
    options=(--spm-model "$spm_model" "${options[@]}")
else
    usage_error "--vocab or --spm-model is needed"
fi
case $bpe in
    sentencepiece) text=spm ;;
    subword-nmt) text=bpe ;;
    *) usage_error "--bpe must be sentencepiece or subword-nmt, but is $bpe" ;;
esac
options=(--bpe "$bpe" "${options[@]}")
raw_dir=${places[0]}
out_dir=${places[1]}
[[ $out_dir != *,* ]] || usage_error "OUT_DIR must hold no comma: fairseq separates names by it"
if [[ -z $workers ]]; then
    workers=$(nproc 2>/dev/null || echo 1)
    ((workers <= 8)) || workers=8
fi
((force == 0)) || options+=(--force)

ensure_setup

helper=("$PYTHON" -m fairseq_floater.data.prepare)
encode=("${helper[@]}" encode "$raw_dir" "$out_dir" --src "$src" --tgt "$tgt"
    --workers "$workers" "${options[@]}")
# The helper prints the test splits in the order in which fairseq is to number them.
if dry; then
    tests=$("${encode[@]}" --dry-run)
    run "${encode[@]}"
else
    # By a file: a signal would not reach what runs inside $( ).
    listed=$(mktemp)
    trap 'rm -f "$listed"' EXIT
    run "${encode[@]}" >"$listed"
    tests=$(<"$listed")
fi

binarise=("$PYTHON" -m fairseq_cli.preprocess --source-lang "$src" --target-lang "$tgt"
    --trainpref "$out_dir/$text/train" --validpref "$out_dir/$text/valid")
testpref=''
for name in $tests; do
    testpref+="${testpref:+,}$out_dir/$text/$name"
done
[[ -z $testpref ]] || binarise+=(--testpref "$testpref")
binarise+=(--srcdict "$out_dir/dict.txt" --joined-dictionary --destdir "$out_dir/.bin.tmp"
    --workers "$workers")

if ! dry && [[ -d $out_dir/bin ]]; then
    say "$out_dir/bin is there already: skipped."
elif dry; then
    run "${binarise[@]}"
else
    say "+ $(quoted "${binarise[@]}")"
    stoppable "${binarise[@]}" >"$out_dir/binarise.log" 2>&1 ||
        die "Binarising failed; see the end of $out_dir/binarise.log."
    rm -f "$out_dir/binarise.log"
fi
run "${helper[@]}" finish "$out_dir"
