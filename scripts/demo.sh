#!/usr/bin/env bash
# The main job on the built-in corpus: five systems through the protocol, a table, a figure and a page.
#
# usage: bash scripts/demo.sh [--work DIR] [--dry-run]
#
# English -> German number words, from nothing to a table in under ten minutes on two cores:
#   plain                       fairseq's own Transformer: the donor of the next two
#   floater-all-qkv             FLOATER, all blocks, started from the donor and trained on
#   sinusoidal-input-hidden     the donor trained on: the control, and like the rest of equal updates
#   rope-all-attention-scratch  RoPE, from random parameters
#   rotation_flow-all-hidden-scratch-nobase-position-stretch_0.5_2.5
#                               a flow that keeps its norm, from random parameters, on stretched positions
# Scored on lines of trained length and on longer ones. A second run skips what is finished.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.demo "$@"
