"""Prepare a task of GLUE for fairseq's sentence_prediction: ``input0``, ``input1``, ``label``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.products import PreparedFolder
from fairseq_floater.data.understanding.binarise import Vocabulary, binarise, write_lines
from fairseq_floater.data.understanding.glue_files import Example, read_examples, split_files
from fairseq_floater.data.understanding.glue_tasks import HIGHEST_SCORE, GlueTask, glue_task
from fairseq_floater.data.understanding.task_data import TaskData
from fairseq_floater.errors import UsageError
from fairseq_floater.files import write_text

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
    """Write the data of a task into ``out_dir``, completely or not at all.

    Classes are numbered in the order of :attr:`GlueTask.labels`. ``references.valid.tsv`` has the index
    and label of each example of valid, in order. For MNLI, valid is matched and valid1 is mismatched.

    Args:
        raw_dir: holds the folder of the task, as in GLUE's archives.
        max_positions: the most tokens of an example; longer ones lose the end of their longer sentence,
            and every sentence keeps its end symbol.

    Raises:
        UsageError: the task is not one of GLUE's, or ``max_positions`` is too small.
        TextDataError: the files cannot be used, or other data are in the way.
    """
    task = glue_task(task_name)
    if max_positions < _LEAST_POSITIONS:
        raise UsageError(
            f"`--max-positions` must be at least {_LEAST_POSITIONS}, but is {max_positions}."
        )
    parameters = {"task": task.name, "max_positions": max_positions}
    data = _GlueData(task.name, split_files(task, raw_dir), vocabulary, task, max_positions)
    return data.prepare(out_dir, parameters, force)


@dataclass
class _GlueData(TaskData):
    task: GlueTask
    limit: int

    def read(self, split: str) -> tuple[list[Example], int]:
        return read_examples(self.task, split, self.files[split])

    def facts(self, examples: dict[str, Any]) -> dict[str, Any]:
        return {"labels": self.task.labels}

    def write(
        self, work: Path, split: str, examples: tuple[list[Example], int]
    ) -> tuple[dict[str, int], list[str]]:
        kept, broken = examples
        counts = self._write_sentences(work, split, kept)
        self._write_labels(work, split, [example.label for example in kept])
        if split != "train":
            rows = [f"{example.name}\t{example.label}\n" for example in kept]
            write_text(work / f"references.{split}.tsv", "index\tlabel\n" + "".join(rows))
        warnings = [f"{split}: {broken:,} broken lines were left out."] if broken else []
        return counts, warnings + self.size_warnings(split, counts, self.task.sizes[split])

    def _write_sentences(self, work: Path, split: str, examples: list[Example]) -> dict[str, int]:
        counts = {"examples": len(examples), "subwords": 0, "unknown": 0, "shortened": 0}
        encoded = [
            self.vocabulary.subwords.encode_lines([line.strip() for line in column])
            for column in zip(*(example.inputs for example in examples))
        ]
        for sentences in zip(*encoded):
            counts["shortened"] += shorten(sentences, self.limit)
        return counts | self.write_inputs(work, split, encoded)

    def _write_labels(self, work: Path, split: str, labels: list[str]) -> None:
        if not self.task.labels:
            scores = [f"{float(label) / HIGHEST_SCORE}\n" for label in labels]
            write_text(work / "label" / f"{split}.label", "".join(scores))
            return
        text, dictionary = work / "text" / f"{split}.label", work / "text" / "labels.txt"
        write_text(dictionary, "".join(f"{label} 1\n" for label in self.task.labels))
        write_lines(text, ([label] for label in labels))
        binarise(text, dictionary, work / "label" / split)


def shorten(sentences: tuple[list[str], ...], limit: int) -> bool:
    """Cut the end of the longest sentence, in place, until all together fit into ``limit`` tokens.

    The symbols that fairseq adds count: ``<s> a </s>``, and ``</s> b </s>`` for a second sentence.
    Returns whether anything was cut.
    """
    surplus = sum(map(len, sentences)) + 2 * len(sentences) - limit
    for _ in range(surplus):
        max(sentences, key=len).pop()
    return surplus > 0
