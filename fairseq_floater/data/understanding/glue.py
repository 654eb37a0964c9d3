"""Prepare a task of GLUE for fairseq's sentence_prediction: ``input0``, ``input1``, ``label``."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.data.products import PreparedFolder, make_folder
from fairseq_floater.data.understanding.binarise import (
    Vocabulary,
    binarise,
    binarise_inputs,
    write_lines,
)
from fairseq_floater.data.understanding.glue_files import Example, read_examples, split_files
from fairseq_floater.data.understanding.glue_tasks import GlueTask, glue_task
from fairseq_floater.data.understanding.subwords import Subwords
from fairseq_floater.errors import UsageError
from fairseq_floater.files import write_text

# STS-B's scores, 0 to 5, become targets from 0 to 1.
_HIGHEST_SCORE = 5.0
# Room for the symbols around two sentences, and a subword in each.
_LEAST_POSITIONS = 6


def prepare(
    task_name: str,
    raw_dir: Path,
    out_dir: Path,
    vocabulary: Vocabulary,
    *,
    max_positions: int = 512,
    force: bool = False,
) -> PreparedFolder:
    """Write the data of a task into ``out_dir``, all or nothing.

    Classes are numbered in the order of :attr:`GlueTask.labels`. ``references.valid.tsv`` has the index
    and label of each example of valid in its order; for MNLI valid is matched, valid1 mismatched.

    Args:
        task_name: of the task, in any case.
        raw_dir: holds the folder of the task as GLUE's archives have it.
        out_dir: there whole or not at all.
        vocabulary: of the model.
        max_positions: tokens that the model takes; longer examples lose the end of their longer
            sentence, so that every sentence keeps its end symbol.
        force: replace data of other input.

    Raises:
        UsageError: there is no such task.
        TextDataError: the files cannot be used, or other data are in the way.
    """
    task = glue_task(task_name)
    if max_positions < _LEAST_POSITIONS:
        raise UsageError(
            f"`--max-positions` must be at least {_LEAST_POSITIONS}, but is {max_positions}."
        )
    files = split_files(task, raw_dir)
    inputs = [path for paths in files.values() for path in paths]
    parameters = {"task": task.name, "max_positions": max_positions}
    build = partial(_build, task=task, files=files, vocabulary=vocabulary, limit=max_positions)
    return make_folder(out_dir, parameters, [*inputs, *vocabulary.files], build, force=force)


def _build(
    work: Path, *, task: GlueTask, files: dict[str, list[Path]], vocabulary: Vocabulary, limit: int
) -> dict[str, Any]:
    read = {split: read_examples(task, split, paths) for split, paths in files.items()}
    labels = work / "labels.txt"
    write_text(labels, "".join(f"{label} 1\n" for label in task.labels))
    counts, warnings = {}, []
    for split, (examples, broken) in read.items():
        counts[split] = _write_inputs(work, split, examples, vocabulary, limit)
        _write_labels(work, split, examples, labels if task.labels else None)
        if split != "train":
            rows = [f"{example.name}\t{example.label}\n" for example in examples]
            write_text(work / f"references.{split}.tsv", "index\tlabel\n" + "".join(rows))
        if broken:
            warnings.append(f"{split}: {broken:,} broken lines were left out.")
        if len(examples) != task.sizes[split]:
            warnings.append(
                f"{split} has {len(examples):,} examples, but {task.sizes[split]:,} are published "
                f"for {task.name}."
            )
    labels.unlink()
    shutil.rmtree(work / "text")
    return {"labels": task.labels, "splits": counts, "warnings": warnings}


def _write_inputs(
    work: Path, split: str, examples: list[Example], vocabulary: Vocabulary, limit: int
) -> dict[str, int]:
    counts = {"examples": len(examples), "subwords": 0, "unknown": 0, "shortened": 0}
    encoded = [
        _encoded(vocabulary.subwords, column) for column in zip(*(e.inputs for e in examples))
    ]
    for sentences in zip(*encoded):
        counts["shortened"] += shorten(sentences, limit)
    return counts | binarise_inputs(work, split, encoded, vocabulary)


def _encoded(subwords: Subwords, lines: tuple[str, ...]) -> list[list[str]]:
    return subwords.encode_lines([line.strip() for line in lines])


def shorten(sentences: tuple[list[str], ...], limit: int) -> bool:
    """Cut the end of the longest sentence, in place, until all fit into ``limit`` tokens.

    Counted with the tokens that fairseq adds: ``<s> a </s>``, and ``</s> b </s>`` for a second one.
    Returns whether anything was cut.
    """
    surplus = sum(map(len, sentences)) + 2 * len(sentences) - limit
    for _ in range(surplus):
        max(sentences, key=len).pop()
    return surplus > 0


def _write_labels(work: Path, split: str, examples: list[Example], labels: Path | None) -> None:
    if labels is None:
        scores = [f"{float(example.label) / _HIGHEST_SCORE}\n" for example in examples]
        write_text(work / "label" / f"{split}.label", "".join(scores))
        return
    text = work / "text" / f"{split}.label"
    write_lines(text, ([example.label] for example in examples))
    binarise(text, labels, work / "label" / split)
