"""`python -m fairseq_floater <verb>` is `floater <verb>`, for a checkout that is not installed."""

import sys

from fairseq_floater.cli import main

sys.exit(main())
