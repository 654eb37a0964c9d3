"""Match predictions with references by their ids, in any order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import read_lines
from fairseq_floater.errors import ReportError, shown


@dataclass(frozen=True)
class Scores:
    """Scores in per cent and counts, by their names in the JSON, and a table of them."""

    fields: dict[str, Any]
    table: list[str]

    def format_text(self) -> str:
        return "\n".join(self.table)

    def to_json_dict(self) -> dict[str, Any]:
        return self.fields


def read_table(path: Path, column: str) -> dict[str, str]:
    """Return {index: value} from a file of two columns with the header ``index``, ``column``."""
    lines = enumerate(read_lines(path), start=1)
    header = next(lines, (0, ""))[1]
    if header.split("\t") != ["index", column]:
        raise ReportError(
            f"{path} must begin with the line `index<TAB>{column}`, but begins with {shown(header)}."
        )
    values: dict[str, str] = {}
    for number, line in lines:
        index, tab, value = line.partition("\t")
        if not tab or "\t" in value:
            raise ReportError(f"{path}, line {number} must have two columns, but is {shown(line)}.")
        if index in values:
            raise ReportError(f"{path} has the index {shown(index)} twice.")
        values[index] = value
    return values


def check_ids(
    predictions: Iterable[str], references: Iterable[str], files: tuple[Path, Path]
) -> None:
    """Raise ReportError if the ids of predictions and references differ.

    ``files`` are the paths of both, for the message.
    """
    predicted, wanted = set(predictions), dict.fromkeys(references)
    missing = [name for name in wanted if name not in predicted]
    strange = sorted(predicted - wanted.keys())
    if not wanted:
        raise ReportError(f"{files[1]} is empty.")
    if missing:
        raise ReportError(
            f"{files[0]} must answer all {len(wanted):,} of {files[1]}, but lacks {len(missing):,}, "
            f"the first {shown(missing[0])}."
        )
    if strange:
        raise ReportError(
            f"{files[0]} must answer only those of {files[1]}, but has {len(strange):,} others, the "
            f"first {shown(strange[0])}."
        )
