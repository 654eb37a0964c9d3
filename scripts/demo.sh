#!/usr/bin/env bash
# The main job on the built-in corpus: five systems through the protocol, a table, a figure and a page.
# bash scripts/demo.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-demo "$@"
