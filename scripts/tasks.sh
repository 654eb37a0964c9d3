#!/usr/bin/env bash
# Tasks by encoders by seeds: trained on short examples, exact match on longer ones, beside published numbers.
# bash scripts/tasks.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-tasks "$@"
