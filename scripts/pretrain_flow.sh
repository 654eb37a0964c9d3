#!/usr/bin/env bash
# Train a position encoder in a pretrained RoBERTa by masked LM (the paper's section 4.2).
# bash scripts/pretrain_flow.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter pretrain-flow "$@"
