#!/usr/bin/env bash
# The masked-LM stage of the paper's 4.2: a pretrained RoBERTa takes positions, and h alone is trained.
#
# usage: bash scripts/pretrain_flow.sh CONFIG [--encoder E] [options]
#
# Makes text and donor of CONFIG where they are not there, warm-starts E from the donor, trains it by masked LM, and
# prints the loss by token position before and after. A killed run goes on where it was.
#   --encoder E     a name that `floater info` lists (default: floater); another one trains all of its parameters
#   --blocks B, --target T, --no-base, --model-options WORDS     as of protocol.sh; --no-base: without RoBERTa's table
#   --extend tile|last    of `floater warm-start`, where --model-options='--max-positions N' is above the donor's
#   --donor FILE    a pretrained RoBERTa (`floater import-roberta`), dict.txt beside it; or CONFIG trains one
#   --raw DIR       your text (mlm/train.txt, mlm/valid.txt), where CONFIG is of no other
#   --bpe-dir DIR, --mirror PLACE       of prepare_mlm.sh
#   --work DIR      everything goes to DIR/<name of CONFIG> and DIR/data (default: work/tables345)
#   --processes N, --cpu, --no-fp16, --nodes N, --launch COMMAND, --rendezvous HOST:PORT    of protocol.sh
#   --dry-run       print every command, run none
# example: bash scripts/pretrain_flow.sh configs/roberta_base.yaml --donor roberta_base.pt

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.roberta.commands pretrain-flow "$@"
