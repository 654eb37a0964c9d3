#!/usr/bin/env bash
# The paper's protocol for one system: donor, warm start, training on, averaging, generation, scores.
# bash scripts/protocol.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run "$@"
