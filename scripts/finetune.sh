#!/usr/bin/env bash
# One fine-tuning of the paper's 4.2: a system on a task of GLUE, RACE or SQuAD, predictions and scores.
# bash scripts/finetune.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter finetune "$@"
