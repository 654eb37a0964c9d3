"""Run `python -m benchmarks PART` from a clone."""

import sys

from benchmarks.cli import main

sys.exit(main())
