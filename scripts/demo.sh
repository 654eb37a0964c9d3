#!/usr/bin/env bash
# The main job on the built-in corpus: five systems through the protocol, a table, a figure and a page.
#
# usage: bash scripts/demo.sh [--work DIR] [--dry-run]
#
# English -> German number words, from nothing to a table in under ten minutes on two cores:
#   plain                              fairseq's own Transformer: the donor of the three below, and
#                                      the control of equal updates for the last
#   floater-all-qkv                    FLOATER, all blocks, started from the donor and trained on
#   sinusoidal-input-hidden            the donor trained on for the same updates
#   learned-all-hidden                 learned tables, started from the donor, the same updates
#   floater-all-hidden-scratch-nobase  FLOATER alone, no sinusoid, from random parameters
# Scored on lines of trained length and on longer ones. A second run skips what is whole.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.demo "$@"
