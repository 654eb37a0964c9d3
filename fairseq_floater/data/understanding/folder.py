"""Make a folder of prepared data whole or not at all, and keep what the same input made before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import say
from fairseq_floater.files import file_hash, put_folder, remove_folder, write_text
from fairseq_floater.records import read_json

SUMMARY = "summary.json"
_MOST_INPUTS = 20
_PACKAGES = ("fairseq-fixed", "sentencepiece", "tokenizers")


@dataclass(frozen=True)
class PreparedFolder:
    """A folder of prepared data and its ``summary.json``."""

    folder: Path
    summary: dict[str, Any]

    def format_text(self) -> str:
        """Format the counts of the splits for a person."""
        splits: dict[str, dict[str, int]] = self.summary["splits"]
        columns = list(next(iter(splits.values())))
        lines = ["  ".join([f"{'split':<7}", *(f"{column:>14}" for column in columns)])]
        for split, counts in splits.items():
            lines.append("  ".join([f"{split:<7}", *(f"{counts[c]:>14,}" for c in columns)]))
        return "\n".join([*lines, str(self.folder)])

    def to_json_dict(self) -> dict[str, Any]:
        """Return the summary."""
        return self.summary


def make_folder(
    out_dir: Path,
    parameters: dict[str, Any],
    inputs: Iterable[Path],
    build: Callable[[Path], dict[str, Any]],
    *,
    force: bool = False,
) -> PreparedFolder:
    """Let ``build`` fill a folder beside ``out_dir``, add the summary, and rename it to ``out_dir``.

    Args:
        out_dir: kept as it is where the same parameters and inputs made it.
        parameters: what shapes the data, as JSON has it.
        inputs: the files that shape the data, each in its place.
        build: fills the folder; returns ``splits`` ({split: {count: number}}), ``warnings`` and more.
        force: replace data of other input.

    Raises:
        TextDataError: other data are in the way.
    """
    given = {
        "parameters": parameters,
        "inputs": _checksums(inputs),
        "packages": {package: version(package) for package in _PACKAGES},
    }
    if out_dir.exists() and (out_dir.is_file() or any(out_dir.iterdir())):
        if not (out_dir / SUMMARY).is_file():
            raise TextDataError(f"{out_dir} was not made here; choose another OUT.")
        summary = read_json(out_dir / SUMMARY)
        difference = _difference(summary, given)
        if difference is None:
            say(f"{out_dir} is there already: skipped.")
            return PreparedFolder(out_dir, summary)
        if not force:
            raise TextDataError(
                f"{out_dir} was made with another {difference}; choose another OUT or add --force."
            )
    work = out_dir.with_name(f".{out_dir.name}.tmp")
    remove_folder(work)
    work.mkdir(parents=True)
    try:
        summary = {**given, **build(work)}
        write_text(work / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        put_folder(work, out_dir)
    finally:
        remove_folder(work)
    for warning in summary["warnings"]:
        say(f"warning: {warning}")
    return PreparedFolder(out_dir, summary)


def _checksums(paths: Iterable[Path]) -> dict[str, str]:
    """Return the checksum of each file, or one of all where they are many."""
    found = {str(path): file_hash(path) for path in paths}
    if len(found) <= _MOST_INPUTS:
        return found
    return {f"{len(found):,} files": hashlib.sha256("".join(found.values()).encode()).hexdigest()}


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Name the first parameter or the first input that differs; inputs may have moved."""
    then, now = old["parameters"], new["parameters"]
    for name in {**then, **now}:
        if then.get(name) != now.get(name):
            return f"`{name}` ({then.get(name)}, not {now.get(name)})"
    known = list(old["inputs"].values())
    if len(known) != len(new["inputs"]):
        return "number of input files"
    pairs = zip(known, new["inputs"].items())
    return next((path for before, (path, checksum) in pairs if before != checksum), None)
