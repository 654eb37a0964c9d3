#!/usr/bin/env bash
# One fine-tuning of the paper's 4.2: a system on a task of GLUE, RACE or SQuAD, its predictions and scores.
#
# usage: bash scripts/finetune.sh CONFIG --task T --system S [options]
#
# Makes the data of T, and what S starts from (pretrain_flow.sh), where they are not there; fine-tunes by the recipe
# of CONFIG, predicts with the chosen checkpoint, scores. A killed run goes on where it was.
#   --task T        cola sst-2 mrpc qqp sts-b mnli qnli rte race squad1 squad2, as far as CONFIG has them
#   --system S      roberta (fairseq's own), floater, or another encoder of `floater info`
#   --seed N        of fine-tuning (default: CONFIG's)
#   --raw DIR       tasks in their official forms: glue/<TASK>/, race/{train,dev,test}/, squad/*.json; mlm/ for text
#   and the options of pretrain_flow.sh but --encoder
# The batch is the recipe's on any number of GPUs that divides it. Updates an epoch are printed beside the recipe's.
# example: bash scripts/finetune.sh configs/roberta_base.yaml --task rte --system floater --raw raw --donor base.pt

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.roberta.commands finetune "$@"
