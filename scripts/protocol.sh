#!/usr/bin/env bash
# The paper's protocol for one system: donor, warm start, training on, averaging, generation, scores.
#
# usage: bash scripts/protocol.sh CONFIG --encoder E [options] [-- options of the model]
#
# Trains the plain Transformer of CONFIG (once, shared by all systems), starts E from it, trains on at half the peak
# rate, averages the last checkpoints, translates and scores every test set. A killed run goes on where it was.
#   --encoder E     a name that `floater info` lists; or plain: average and score the donor itself
#   --blocks B      all (default) or input
#   --target T      qkv, hidden or relative (default: the encoder's own; not for encoders inside attention)
#   --scratch       train from random parameters instead of the donor (`budget: scratch`)
#   --no-base       without fairseq's sinusoid underneath
#   --losses        also the teacher-forced loss of every test sentence (losses.<test>.txt)
#   --seed N        of training (default: the configuration's)
#   --raw DIR       your parallel text (train, valid and test* files); not for the built-in corpus
#   --data DIR      data that prepare_text.sh has made, instead of making them; WMT14's are made there if need be
#   --mirror PLACE, --rehearsal   of prepare_wmt14.sh, where CONFIG is of WMT14
#   --work DIR      where everything goes (default: work/<name of CONFIG>)
#   --donor DIR     the donor's folder (default: <work>/plain); trained there if it is not, with CONFIG's seed
#   --processes N   GPUs of a node (default: as many of this machine as share an update evenly; 0 is the CPU)
#   --cpu, --no-fp16    the N processes are CPU processes, one by default; full precision on GPUs
#   --nodes N       train on N nodes, by torchrun: --launch COMMAND starts the words after it once on each node
#                   ("srun --ntasks-per-node=1"), --rendezvous HOST:PORT is a free port of one of them
#   --dry-run       print every command, run none
#
# Tokens an update are the configuration's (--update-freq); what more GPUs than share them make of an update is said.
# SIGTERM saves a checkpoint first.
# examples:
#   bash scripts/protocol.sh configs/text_tiny.yaml --raw my_text --encoder floater --blocks all
#   bash scripts/protocol.sh configs/numbers_en_de.yaml --encoder t5 -- --t5-max-distance 32

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

words=("$@")
for ((i = 0; i < $#; i++)); do
    [[ ${words[i]} == -- ]] || continue
    model=("${words[@]:i+1}")
    words=("${words[@]:0:i}" "--model-options=${model[*]@Q}")
    break
done
enter fairseq_floater run "${words[@]}"
