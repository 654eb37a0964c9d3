"""Mend the installed fairseq and hydra for Python 3.11, Python 3.14 and NumPy 2.

Python 3.11 refuses an instance of a dataclass as the default of a field. The class itself can stand
there: fairseq and OmegaConf read the same defaults off it. NumPy 2 lacks ``np.compat``, which fairseq reads
for ``--sample-break-mode eos`` and ``--num-batch-buckets``. Python 3.14 writes ``Optional[str]`` as
``str | None``, which fairseq must know as optional, and wants hydra's help as a string. It also starts the
workers of a data loader from a server that imports torch and fairseq again, which takes seconds and 0.8 GB;
here they are forked as before. Code that needs no mending is left alone.

    python scripts/mend_fairseq.py
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

MENDS = {
    "fairseq": [
        # In the body of a class: `common: CommonConfig = CommonConfig()`, `quant: Q = field(default=Q())`.
        (rb"(?m)^(    \w+: *(\w+) *= *(?:field\(default=)?\2)\(\)", rb"\1"),
        (rb"\bnp\.compat\.long\b", rb"np.int64"),
        (
            rb'(typestring)(\.startswith\("typing\.Optional"\)):',
            rb'\1\2 or \1.endswith(" | None"):',
        ),
        (
            rb"(num_workers)=self\.\1,(?! multi)",
            rb'\g<0> multiprocessing_context="fork" if self.\1 > 0 else None,',
        ),
    ],
    "hydra": [(rb"help=(LazyCompletionHelp\(\)),", rb"help=str(\1),")],
}


def main() -> None:
    for name, mends in MENDS.items():
        spec = find_spec(name)  # finds the folder without importing it
        if spec is None or spec.origin is None:
            sys.exit(f"{name} is not installed for this Python.")
        folder, files = Path(spec.origin).parent, 0
        for path in folder.rglob("*.py"):
            code = mended = path.read_bytes()
            for pattern, replacement in mends:
                mended = re.sub(pattern, replacement, mended)
            if mended != code:
                path.write_bytes(mended)
                files += 1
        if files:
            print(f"{folder}: {files} files mended")


if __name__ == "__main__":
    main()
