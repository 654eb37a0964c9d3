"""Make the installed fairseq importable on Python 3.11 and later, as facebookresearch/fairseq's main is not.

Python 3.11 refuses an instance of a dataclass as the default of a field. The class itself can stand
there: fairseq and OmegaConf read the same defaults off it. A fairseq that needs no mending is left alone.

    python scripts/mend_fairseq.py
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

# In the body of a class: `common: CommonConfig = CommonConfig()`, `quant: Q = field(default=Q())`.
INSTANCE = re.compile(rb"^(    \w+: *(\w+) *= *(?:field\(default=)?\2)\(\)", re.MULTILINE)


def main() -> None:
    spec = find_spec("fairseq")  # finds the folder without importing it
    if spec is None or spec.origin is None:
        sys.exit("fairseq is not installed for this Python.")
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        code = path.read_bytes()
        mended, count = INSTANCE.subn(rb"\1", code)
        if count:
            path.write_bytes(mended)
            print(f"{path}: {count} defaults")


if __name__ == "__main__":
    main()
