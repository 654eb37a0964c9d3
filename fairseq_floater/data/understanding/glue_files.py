"""Read GLUE's tab-separated files strictly, without quoting; a byte-order mark is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fairseq_floater.data.parallel_text import TextDataError, plain_or_zipped, read_lines
from fairseq_floater.data.understanding.glue_tasks import HIGHEST_SCORE, GlueTask
from fairseq_floater.errors import shown

_MRPC_TEXT, _MRPC_DEV = "msr_paraphrase_train.txt", ("dev_ids.tsv", "mrpc_dev_ids.tsv")


class Example(NamedTuple):
    """One example: its name (the file's index, else its number from 0), its sentences and its label."""

    name: str
    inputs: tuple[str, ...]
    label: str


def split_files(task: GlueTask, raw_dir: Path) -> dict[str, list[Path]]:
    """Return the files of each split in ``raw_dir/<TASK>``, plain or ``.gz``.

    MRPC may come as Microsoft's file, with GLUE's list of the pairs in its dev set.
    """
    folder = raw_dir / task.name

    def is_file(name: str) -> bool:
        return any((folder / f"{name}{end}").is_file() for end in ("", ".gz"))

    names = {split: [name] for split, name in task.files.items()}
    if task.name == "MRPC" and not is_file("train.tsv") and is_file(_MRPC_TEXT):
        dev = next(filter(is_file, _MRPC_DEV), _MRPC_DEV[0])
        names = dict.fromkeys(names, [_MRPC_TEXT, dev])
    return {s: [plain_or_zipped(folder / name) for name in names[s]] for s in names}


def read_examples(task: GlueTask, split: str, paths: list[Path]) -> tuple[list[Example], int]:
    """Read a split.

    Returns:
        The examples, and the number of lines that were left out because they are broken.

    Raises:
        TextDataError: a column is missing, a label unknown, or an index missing or duplicate.
    """
    chosen = _mrpc_rows(split, paths[1]) if len(paths) > 1 else None
    examples: list[Example] = []
    broken = 0
    for where, row in _rows(paths[0], task):
        if row is None:
            broken += 1
            continue
        if chosen is not None and not chosen(row):
            continue
        inputs = tuple(row[name] for name in task.inputs)
        index = row.get("index", str(len(examples)))
        examples.append(Example(index, inputs, _label(task, row[task.label], where)))
    if not examples:
        raise TextDataError(f"{paths[0]} holds no example for {split}.")
    if split != "train":
        _check_indices(examples, paths[0])
    return examples, broken


def _rows(path: Path, task: GlueTask) -> Iterator[tuple[str, dict[str, str] | None]]:
    """Yield the place of each line and its {column: text}, or None if a broken line may be left out."""
    lines = enumerate(read_lines(path), start=1)
    columns = list(task.columns)
    if not columns:
        columns = next(lines, (0, ""))[1].split("\t")
        for name in (*task.inputs, task.label):
            if name not in columns:
                raise TextDataError(
                    f"{path} must have the column {name!r}, but its first line is "
                    f"{shown(' '.join(columns))}."
                )
    for number, line in lines:
        cells = line.split("\t")
        where = f"{path}, line {number}"
        if len(cells) == len(columns):
            yield where, dict(zip(columns, cells))
        elif task.skips_broken_lines:
            yield where, None
        else:
            raise TextDataError(f"{where} must have {len(columns)} columns, but has {len(cells)}.")


def _label(task: GlueTask, text: str, where: str) -> str:
    if task.labels:
        if text not in task.labels:
            rule = ", ".join(task.labels)
            raise TextDataError(f"{where}: the label must be one of {rule}, but is {shown(text)}.")
        return text
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= HIGHEST_SCORE:
        raise TextDataError(
            f"{where}: the score must be from 0 to {HIGHEST_SCORE}, but is {shown(text)}."
        )
    return text


def _mrpc_rows(split: str, path: Path) -> Callable[[dict[str, str]], bool]:
    dev = {tuple(line.split("\t")) for line in read_lines(path)}
    return lambda row: ((row["#1 ID"], row["#2 ID"]) in dev) == (split == "valid")


def _check_indices(examples: list[Example], path: Path) -> None:
    seen: set[str] = set()
    for example in examples:
        if not example.name:
            raise TextDataError(f"{path} has an example without an index.")
        if example.name in seen:
            raise TextDataError(f"{path} has the index {shown(example.name)} twice.")
        seen.add(example.name)
