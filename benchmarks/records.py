"""Keep measurements in memory and in a file, so that a benchmark that was killed can resume."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import fairseq_floater
from benchmarks.timing import Row
from fairseq_floater.errors import UsageError
from fairseq_floater.files import write_text


def code_hash() -> str:
    """Return a hash of the plugin's and the benchmark's source: other code gives other measurements."""
    digest = hashlib.sha256()
    for folder in (Path(fairseq_floater.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Records:
    """Hold one row for every measurement of a contestant.

    ``where`` distinguishes the measurements of a part (vocabulary, sentences at once, position).

    Args:
        about: settings and machine; a file's rows are reused only if these are equal.
        path: a file of JSON lines, ``about`` first, which is read and then extended; None: no file.

    Raises:
        UsageError: the file is of another benchmark.
    """

    def __init__(self, about: dict[str, Any], path: str | None = None):
        self.rows: list[Row] = []
        self._file = None if path is None else Path(path)
        if self._file is None:
            return
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        # A line that was cut off by a kill has no newline.
        lines = text[: text.rfind("\n") + 1].splitlines()
        about = json.loads(json.dumps(about))
        if text and (other := _differing(text.partition("\n")[0], about)):
            raise UsageError(
                f"`--resume` {path} holds measurements with another {other}: name a new file, or "
                "remove this one."
            )
        self.rows = [json.loads(line) for line in lines[1:]]
        write_text(self._file, "".join(f"{json.dumps(row)}\n" for row in (about, *self.rows)))

    def add(self, part: str, where: Row, contestant: str, **measured: Any) -> None:
        row = {"part": part, "where": where, "contestant": contestant, **measured}
        self.rows.append(row)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")

    def find(self, part: str, where: Row, contestant: str | None = None) -> list[Row]:
        """Return the rows of a measurement, of one contestant or of all."""
        return [
            row
            for row in self.rows
            if (row["part"], row["where"]) == (part, where)
            and contestant in (None, row["contestant"])
        ]


def _differing(line: str, other: dict[str, Any]) -> str:
    """Return the name of the first setting that differs from those in ``line``; empty if none does."""
    try:
        one = json.loads(line)
    except ValueError:
        one = None
    if not isinstance(one, dict):
        return "form of file"
    return next((key for key in other if one.get(key) != other[key]), "")
