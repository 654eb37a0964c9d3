#!/usr/bin/env bash
# Compare position encoders: the same data, updates and seeds for all, scores with intervals, p-values and ranks.
#
# usage: bash scripts/compare.sh CONFIG [--encoders NAMES] [--seeds 1,2,3] [--jobs N] [options]
#
# Trains each system on the text of CONFIG, translates its test sets and scores each of them. Where CONFIG has a
# section `s2l` (threshold, edges), splits the text by source length first, trains on the short part, and scores the
# trained lengths and each bin of longer ones. Takes days if need be, on any number of machines with a shared folder:
# finished runs are skipped, runs that another process is at work on are left to it, a killed one goes on where it
# was. The table is of finished runs.
#   --encoders NAMES    all, or names with commas (rope,t5,floater): each in the forms that its class names, beside the
#                   configuration's baseline (default: the systems that CONFIG lists in `compare` or `s2l`)
#   --start WHICH   of --encoders: scratch (random parameters, nothing underneath a signal) or donor (warm);
#                   default: as the baseline
#   --stretch LOW:HIGH  each system that takes it also under --position-stretch LOW:HIGH
#   --seeds 1,2,3   each system under each seed: means, spreads (default: the configuration's seed)
#   --jobs N        trainings side by side (default: 1 on GPUs, the number of cores, at most 4, on the CPU)
#   --only SYSTEMS  comma-separated names or patterns: 'rope-*,*-stretch_*'; the table has the others all the same
#   --list          print the names of the systems, one a line, and do nothing
#   --status        what is done, running, failed, broken off, not begun, and the time left
#   --table         score what is finished
#   --raw DIR       your parallel text (train, valid and test* files); not for the built-in corpus
#   --work DIR      where everything goes (default: work/<name of CONFIG>)
#   --donor DIR     one donor for all seeds, trained there if it is not (default: one for each seed)
#   --processes N, --cpu, --no-fp16, --nodes N, --launch COMMAND, --rendezvous HOST:PORT    of protocol.sh
#   --dry-run       print every command, run none
# examples:
#   bash scripts/compare.sh configs/text_tiny.yaml --raw my_text --seeds 1,2,3 --donor work/text_tiny/plain
#   bash scripts/compare.sh configs/numbers_s2l.yaml --encoders all --stretch 0.5:2.5 --seeds 1,2,3
#   bash scripts/compare.sh configs/numbers_s2l.yaml --encoders rope,t5,floater --status

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter fairseq_floater.experiments.compare "$@"
