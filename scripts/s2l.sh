#!/usr/bin/env bash
# The short-to-long experiment: split by length, train every system on the short part, score by bins.
#
# usage: bash scripts/s2l.sh CONFIG [options]
#
# Trains on sentences below a length and tests on longer ones, in bins (section `s2l` of CONFIG: threshold,
# edges, systems): splits the text, trains each system under the same budget, translates, scores per bin
# with intervals and paired comparisons. Finished steps are skipped; run it again after a break.
#   --seeds 1,2,3   train every system under each seed: means and spreads (default: the configuration's seed)
#   --raw DIR       your parallel text (train, valid and test* files); not for the built-in corpus
#   --work DIR      where everything goes (default: work/<name of CONFIG>)
#   --processes N   GPUs for one training (default: as many as share an update evenly; 0 is the CPU)
#   --jobs N        trainings side by side (default: 1 on GPUs, the number of cores, at most 4, on the CPU)
#   --status        what is done, running, failed, broken off, not begun, and the time left
#   --dry-run       print every command, run none
# It is compare.sh with the systems that CONFIG lists, and takes all of that script's options.
# example: bash scripts/s2l.sh configs/numbers_s2l.yaml

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.compare --by-length "$@"
