#!/usr/bin/env bash
# Fine-tune one system on a task of GLUE, RACE or SQuAD (the paper's section 4.2), predict and score.
# bash scripts/finetune.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter finetune "$@"
