"""Prepare a task of language understanding: from its official files to fairseq's data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.products import PreparedFolder, make_folder
from fairseq_floater.data.understanding.binarise import (
    Vocabulary,
    binarise,
    check_dictionary,
    write_lines,
)
from fairseq_floater.files import remove_folder


@dataclass
class TaskData(ABC):
    """The official files of a task by split, and how each split is read and written."""

    name: str
    files: dict[str, list[Path]]
    vocabulary: Vocabulary

    @abstractmethod
    def read(self, split: str) -> Any:
        """Return the examples of a split."""

    @abstractmethod
    def write(self, work: Path, split: str, examples: Any) -> tuple[dict[str, int], list[str]]:
        """Write a split into the folder ``work``; return its counts, the examples first, and warnings."""

    def facts(self, examples: dict[str, Any]) -> dict[str, Any]:
        """Return further entries of the summary, beside counts and warnings."""
        return {}

    def prepare(self, out_dir: Path, parameters: dict[str, Any], force: bool) -> PreparedFolder:
        """Write all splits, unless the same files and ``parameters`` made them before."""
        inputs = [path for paths in self.files.values() for path in paths]
        inputs += self.vocabulary.files
        return make_folder(out_dir, parameters, inputs, self._build, force=force)

    def _build(self, work: Path) -> dict[str, Any]:
        examples = {split: self.read(split) for split in self.files}
        facts, counts, warnings = self.facts(examples), {}, []
        for split in self.files:
            counts[split], remarks = self.write(work, split, examples.pop(split))
            warnings += remarks
        remove_folder(work / "text")
        return {**facts, "splits": counts, "warnings": warnings}

    def size_warnings(self, split: str, counts: dict[str, int], published: int) -> list[str]:
        """Return a warning if a split has more or fewer examples than published."""
        unit, size = next(iter(counts.items()))
        rule = f"but {published:,} are published for {self.name}."
        return [] if size == published else [f"{split} has {size:,} {unit}, {rule}"]

    def write_inputs(
        self, work: Path, split: str, inputs: Iterable[list[list[str]]]
    ) -> dict[str, int]:
        """Write lines of subwords as ``input0/<split>``, ``input1/<split>``, ...

        Returns:
            The number of ``subwords``, and of subwords that are ``unknown`` to the dictionary.
        """
        counts, dictionary = {"subwords": 0, "unknown": 0}, self.vocabulary.dictionary
        for number, lines in enumerate(inputs):
            text = work / "text" / f"{split}.input{number}"
            write_lines(text, lines)
            binarised = binarise(text, dictionary, work / f"input{number}" / split)
            check_dictionary(binarised, dictionary, f"{split}, input {number}")
            counts["subwords"] += binarised.words
            counts["unknown"] += binarised.unknown
        return counts
