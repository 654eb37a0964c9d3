#!/usr/bin/env bash
# Check the plugin on a GPU: contract tests, short trainings in each precision, translations, benchmark.
#
# usage: bash scripts/gpu_check.sh [--work DIR] [--encoders NAMES] [--device cpu] [--dry-run]
#
# On one GPU: versions; the contract of every encoder with models and tensors there; short trainings in float32, by
# --fp16, by --amp and in bf16; translations in two dtypes; every encoder's update, memory, kernels, translation and
# steps beside fairseq's Transformer (bfloat16, 25,000 tokens), and the flow's engines. What fails is noted and the
# rest goes on.
# Ends with gpu_check.tar.gz: logs, tables, figures, no weights. A second run repeats only what did not succeed.
#   --work DIR        where everything goes (default: work/gpu_check)
#   --encoders NAMES  that are trained, with commas (default: floater,rope,t5,conv)
#   --device cpu      a rehearsal, in small: whether this script works, nothing about a GPU
#   --dry-run         print every command, run none
# example: CUDA_VISIBLE_DEVICES=0 bash scripts/gpu_check.sh

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.gpu_check "$@"
