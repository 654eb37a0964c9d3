#!/usr/bin/env bash
# Train systems on short examples of SCAN or a generated task; print exact match on longer ones and published numbers.
# bash scripts/tasks.sh --help lists the options.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
enter run-tasks "$@"
