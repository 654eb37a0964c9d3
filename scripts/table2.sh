#!/usr/bin/env bash
# Table 2 of the paper: its 24 cells, one run each, and the table beside the paper's numbers.
#
# usage: bash scripts/table2.sh [--only CELLS] [--status | --list | --donors | --table] [options]
#
# Runs cells of Table 2 (WMT14 En-De and En-Fr, base and big, six encoder settings) one after the other: data and
# donor of a column once, then warm start, training on, averaging, translation and scores of each row. Any order, any
# number of machines with a shared folder: what another one is at is left to it, what is finished is skipped, and a killed
# run goes on where it was. Ends with the table.
#   --only CELLS    comma-separated names or patterns: base-en-de-floater-all, 'big-en-fr-*', '*-floater-*'
#   --donors        train the four donors instead (--only 'base-en-de-*' picks); average and score them too
#   --list          print the names of the cells, one a line, and do nothing
#   --status        what is done, running, failed, broken off, not begun
#   --table         print the table of what is done
#   --seeds 1,2,3   every cell under each seed, from the same donor (default: 1)
#   --work DIR      everything goes there (default: work/table2)
#   --configs DIR   where wmt14_<pair>_<size>.yaml are (default: configs; for a rehearsal in miniature)
#   --mirror PLACE, --rehearsal                    of prepare_wmt14.sh
#   --processes N, --cpu, --no-fp16, --nodes N, --launch COMMAND, --rendezvous HOST:PORT    of protocol.sh
#   --dry-run       print every command of the cells, run none
# examples:
#   bash scripts/table2.sh --only 'base-en-de-*'                    # a column on this machine's GPUs
#   bash scripts/table2.sh --status

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.table2 "$@"
