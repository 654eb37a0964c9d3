"""Make folders of data, complete or not at all; keep data of the same input, and refuse other data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import say
from fairseq_floater.files import file_hash, naming, put_folder, remove_folder
from fairseq_floater.records import read_json, write_json
from fairseq_floater.requirements import FAIRSEQS, version_of

SUMMARY = "summary.json"
_MOST_INPUTS = 20
_PACKAGES = (*FAIRSEQS, "sentencepiece", "tokenizers")


class Origin(NamedTuple):
    """What data are made from: parameters, as in JSON, and the checksum of each input by name."""

    parameters: dict[str, Any]
    inputs: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Origin | None:
        """Read the origin from a JSON file; None if there is no file, or no origin in it."""
        record = read_json(path) if path.is_file() else {}
        is_origin = isinstance(record, dict) and "parameters" in record
        return cls(record["parameters"], record.get("inputs", {})) if is_origin else None

    def differs_from(self, new: Origin) -> str | None:
        """Describe the first difference in parameters or inputs; None if there is none."""
        for name in {**self.parameters, **new.parameters}:
            before, now = self.parameters.get(name), new.parameters.get(name)
            if before != now:
                return f"`{name}` {before}, not {now}"
        for name in {**self.inputs, **new.inputs}:
            if self.inputs.get(name) != new.inputs.get(name):
                return f"{'another' if name in self.inputs else 'no'} {name}"
        return None


def is_made(
    folder: Path,
    old: Origin | None,
    new: Origin,
    *,
    files: Iterable[str] = (),
    force: bool = False,
    option: str = "OUT",
) -> bool:
    """Return whether a folder holds the data already.

    Args:
        old: the origin recorded in the folder; None if it has none.
        files: what the folder must hold, :func:`files_in` it when it was made.
        force: other data may be replaced, but never a folder without an origin.
        option: the name of the folder on the command line.

    Raises:
        TextDataError: something else is in the way.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if old is None:
        raise TextDataError(f"{folder} was not made by floater; choose another {option}.")
    difference = old.differs_from(new)
    if difference is not None and not force:
        raise TextDataError(
            f"{folder} was made with {difference}; choose another {option} or add --force."
        )
    return difference is None and all((folder / name).is_file() for name in files)


def refuse_foreign(folder: Path, made: Iterable[str] | None) -> None:
    """Raise TextDataError if a folder about to be replaced holds a file that floater did not make.

    Args:
        made: :func:`files_in` the folder when it was made; None if an older version did not record them.
    """
    if made is not None:
        for name in sorted(set(files_in(folder)).difference(made)):
            rule = "was not made by floater and would be deleted; move it elsewhere"
            raise TextDataError(f"{folder / name} {rule}.")


def files_in(folder: Path) -> list[str]:
    """Return the paths of the files below a folder, relative to it."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder ``path`` to fill; delete what is still in it at the end."""
    remove_folder(path)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        remove_folder(path)


@dataclass(frozen=True)
class PreparedFolder:
    """A folder of prepared data and its ``summary.json``."""

    folder: Path
    summary: dict[str, Any]

    def format_text(self) -> str:
        splits: dict[str, dict[str, int]] = self.summary["splits"]
        columns = list(dict.fromkeys(name for counts in splits.values() for name in counts))
        width = max(7, *map(len, splits))
        lines = ["  ".join([f"{'split':<{width}}", *(f"{column:>14}" for column in columns)])]
        for split, counts in splits.items():
            cells = (f"{counts[c]:>14,}" if c in counts else " " * 14 for c in columns)
            lines.append("  ".join([f"{split:<{width}}", *cells]).rstrip())
        return "\n".join([*lines, str(self.folder)])

    def to_json_dict(self) -> dict[str, Any]:
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
        out_dir: kept as it is if the same parameters and inputs made it, and no file is missing.
        inputs: the files that shape the data, always in the same order; their paths may change.
        build: fills the folder; returns ``splits`` ({split: {count: number}}), ``warnings`` and more.

    Raises:
        TextDataError: an input is missing, or other data are in the way.
    """
    if out_dir.is_symlink():
        out_dir = out_dir.resolve()  # a link cannot be replaced by a folder
    new = Origin(parameters, _checksums(inputs))
    old = Origin.read(out_dir / SUMMARY)
    if old is not None and len(old.inputs) == len(new.inputs):
        old = old._replace(inputs=dict(zip(new.inputs, old.inputs.values())))
    made = read_json(out_dir / SUMMARY) if old else {}
    if is_made(out_dir, old, new, files=made.get("files", ()), force=force):
        say(f"{out_dir} exists already: skipped.")
        return PreparedFolder(out_dir, made)
    refuse_foreign(out_dir, made.get("files"))
    with naming(out_dir), work_folder(out_dir.with_name(f".{out_dir.name}.tmp")) as work:
        packages = {name: version for name in _PACKAGES if (version := version_of(name))}
        summary = {**new._asdict(), "packages": packages, **build(work)}
        summary["files"] = [*files_in(work), SUMMARY]
        write_json(work / SUMMARY, summary)
        put_folder(work, out_dir)
    for warning in summary["warnings"]:
        say(f"warning: {warning}")
    return PreparedFolder(out_dir, summary)


def _checksums(paths: Iterable[Path]) -> dict[str, str]:
    """Return the checksum of each file, or one of all if there are many."""
    sums = {}
    for path in paths:
        if not path.is_file():
            raise TextDataError(f"{path} is missing.")
        sums[str(path)] = file_hash(path)
    if len(sums) <= _MOST_INPUTS:
        return sums
    return {f"{len(sums):,} files": hashlib.sha256("".join(sums.values()).encode()).hexdigest()}
