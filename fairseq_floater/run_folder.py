"""What `scripts/protocol.sh` asks of a run's folder, one start of Python a question."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_floater.cli_common import exit_code
from fairseq_floater.files import write_text
from fairseq_floater.report import ReportError, read_json


def write_validation(log: str, output: str) -> None:
    """Keep the losses that fairseq-validate printed last in ``log`` as JSON.

    Raises:
        ReportError: the log holds no validation.
    """
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"valid on '(\S+)' subset \| (loss .+)", text)
    if not found:
        raise ReportError(f"{log} holds no line of fairseq-validate's; see its end.")
    subset, fields = found[-1]
    pairs = (field.split(" ", 1) for field in fields.split(" | "))
    values = {name: float(value) for name, value in pairs}
    write_text(output, json.dumps({"subset": subset, **values}, indent=2) + "\n")


def field(path: str, *keys: str) -> str:
    """A value of a JSON file.

    Raises:
        ReportError: no such file or key.
    """
    found = read_json(Path(path))
    try:
        return str(functools.reduce(lambda value, key: value[key], keys, found))
    except (KeyError, TypeError, IndexError):
        raise ReportError(f"{path} holds no {' '.join(keys)}.") from None


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m fairseq_floater.run_folder repair|validation|field ...`; returns the exit code."""
    command, *words = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: _run(command, words), Path(words[0]))


def _run(command: str, words: list[str]) -> None:
    if command == "repair":
        from fairseq_floater.checkpoints import repair_last  # brings torch

        print(repair_last(*words))
    elif command == "validation":
        write_validation(*words)
    else:
        print(field(*words))


if __name__ == "__main__":
    sys.exit(main())
