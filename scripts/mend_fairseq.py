"""Mend the installed fairseq where Python 3.11 or NumPy 2 refuses its code.

Python 3.11 refuses an instance of a dataclass as the default of a field. The class itself can stand
there: fairseq and OmegaConf read the same defaults off it. NumPy 2 lacks ``np.compat``, which fairseq reads
for ``--sample-break-mode eos`` and ``--num-batch-buckets``. A fairseq that needs no mending is left alone.

    python scripts/mend_fairseq.py
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

# In the body of a class: `common: CommonConfig = CommonConfig()`, `quant: Q = field(default=Q())`.
INSTANCE = re.compile(rb"^(    \w+: *(\w+) *= *(?:field\(default=)?\2)\(\)", re.MULTILINE)
LONG = re.compile(rb"\bnp\.compat\.long\b")


def main() -> None:
    spec = find_spec("fairseq")  # finds the folder without importing it
    if spec is None or spec.origin is None:
        sys.exit("fairseq is not installed for this Python.")
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        code = path.read_bytes()
        mended, defaults = INSTANCE.subn(rb"\1", code)
        mended, types = LONG.subn(b"np.int64", mended)
        if defaults or types:
            path.write_bytes(mended)
            print(f"{path}: {defaults} defaults, {types} types")


if __name__ == "__main__":
    main()
