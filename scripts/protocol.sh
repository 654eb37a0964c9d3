#!/usr/bin/env bash
# Run the paper's protocol for one system: donor, warm start, further training, averaging, generation, scores.
# bash scripts/protocol.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run "$@"
