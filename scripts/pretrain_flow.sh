#!/usr/bin/env bash
# The masked-LM stage of the paper's 4.2: a pretrained RoBERTa takes positions.
# bash scripts/pretrain_flow.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter pretrain-flow "$@"
