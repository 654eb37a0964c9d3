"""Convert SQuAD's official files to the data of the task ``floater_question_answering``.

A folder holds ``dict.txt`` and ``bpe`` of the text that the model was trained on, ``train.jsonl`` and
``valid.jsonl``, ``references.valid.json`` (the official file, for the scorer) and ``summary.json``. Each
line of a split is a passage: its text, its subwords, the characters of each, and its questions. An
answer is given by its first and its last subword.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.products import PreparedFolder
from fairseq_floater.data.understanding.binarise import Binarised, Vocabulary, check_dictionary
from fairseq_floater.data.understanding.squad_files import (
    Answer,
    Passage,
    Question,
    Squad,
    read_squad,
)
from fairseq_floater.data.understanding.subwords import FOLDER, Subwords
from fairseq_floater.data.understanding.task_data import TaskData

# Published numbers of questions. Other data may have other numbers, so these only cause a warning.
PUBLISHED = {
    "1.1": {"train": 87_599, "valid": 10_570},
    "2.0": {"train": 130_319, "valid": 11_873},
}
_NAMES = {"train": "train", "valid": "dev"}
# Characters by which an offset may be wrong. Further away, the same words are another mention.
_SLIP = 2


def prepare(
    raw_dir: Path,
    out_dir: Path,
    vocabulary: Vocabulary,
    *,
    version: str | None = None,
    train: Path | None = None,
    valid: Path | None = None,
    force: bool = False,
) -> PreparedFolder:
    """Write ``out_dir`` completely or not at all; it is kept if the same files made it.

    Args:
        version: 1.1 or 2.0; None: the one that ``raw_dir`` holds.
        train, valid: files of ``raw_dir``, or paths, instead of the official names.

    Raises:
        UserError: a file is missing or cannot be used, or other data are in the way.
    """
    files = _files(raw_dir, version, {"train": train, "valid": valid})
    names = {split: path.name for split, (path,) in files.items()}
    parameters = {"task": "squad", "version": version, **names}
    return _SquadData("SQuAD", files, vocabulary, version).prepare(out_dir, parameters, force)


def _files(raw: Path, version: str | None, given: dict[str, Path | None]) -> dict[str, list[Path]]:
    if version is None and None in given.values():
        missing = [split for split, path in given.items() if path is None]
        names = {v: [f"{_NAMES[split]}-v{v}.json" for split in missing] for v in PUBLISHED}
        complete = [v for v in PUBLISHED if all((raw / name).is_file() for name in names[v])]
        if len(complete) != 1:
            number = "both" if complete else "neither"
            wanted = " or ".join(" and ".join(names[v]) for v in PUBLISHED)
            remedy = "choose with --data-version" if complete else "give --train and --valid"
            raise TextDataError(f"{raw} must hold {wanted}, but holds {number}; {remedy}.")
        version = complete[0]
    files = {}
    for split, path in given.items():
        file = raw / (f"{_NAMES[split]}-v{version}.json" if path is None else path)
        files[split] = [path if path is not None and not file.is_file() else file]
    return files


@dataclass
class _SquadData(TaskData):
    version: str | None

    def read(self, split: str) -> Squad:
        return read_squad(self.files[split][0])

    def facts(self, examples: dict[str, Squad]) -> dict[str, Any]:
        """Return the version of all files; raise TextDataError if they differ."""
        self.version = self.version or examples["train"].version
        for split, squad in examples.items():
            if squad.version != self.version:
                rule = f"{self.files[split][0]} must be SQuAD {self.version}"
                raise TextDataError(f"{rule}, but is {squad.version} instead.")
        return {"version": self.version}

    def write(self, work: Path, split: str, examples: Squad) -> tuple[dict[str, int], list[str]]:
        source = self.files[split][0]
        writer = _Split(split, source, examples, self.vocabulary)
        writer.write(work / f"{split}.jsonl")
        if split == "valid":
            shutil.copyfile(source, work / "references.valid.json")
            shutil.copyfile(self.vocabulary.dictionary, work / "dict.txt")
            self.vocabulary.subwords.store(work / FOLDER)
        return writer.counts, list(writer.warnings())


class _Split:
    def __init__(self, name: str, source: Path, squad: Squad, vocabulary: Vocabulary) -> None:
        self.name, self.source, self.squad, self.vocabulary = name, source, squad, vocabulary
        self.subwords: Subwords = vocabulary.subwords
        lines = vocabulary.dictionary.read_text(encoding="utf-8").split("\n")
        self.known = {line.rpartition(" ")[0] for line in lines}
        names = ("questions", "unanswerable", "answers", "skipped", "subwords", "unknown")
        self.counts = {"passages": len(squad.passages), **dict.fromkeys(names, 0)}
        self.moved: list[str] = []  # ids of questions
        self.skipped: list[str] = []

    def write(self, path: Path) -> None:
        """Write one line per passage; raises TextDataError if no answer at all is at its offset."""
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for passage in self.squad.passages:
                file.write(json.dumps(self._entry(passage), ensure_ascii=False) + "\n")
        if self.skipped and not self.counts["answers"]:
            rule = f"{self.source} must have its answers at their offsets in the passages"
            raise TextDataError(f"{rule}, but none of {len(self.skipped):,} is at its offset.")
        kept = self.counts
        counts = Binarised(kept["passages"], kept["subwords"], kept["unknown"])
        check_dictionary(counts, self.vocabulary.dictionary, str(self.source))

    def warnings(self) -> Iterator[str]:
        read, published = len(self.squad.questions), PUBLISHED[self.squad.version][self.name]
        if read != published:
            yield f"{self.source} has {read:,} questions, not the {published:,} of the published file."
        if self.moved:
            yield (
                f"{self.source} has {len(self.moved):,} answers at most {_SLIP} characters away "
                f"from their offsets; they were moved (the first: question {self.moved[0]})."
            )
        if self.skipped:
            yield (
                f"{self.source} has {len(self.skipped):,} answers that are not within {_SLIP} characters "
                f"of their offsets; they were skipped (the first: question {self.skipped[0]}), and so "
                "were training questions without another answer."
            )

    def _entry(self, passage: Passage) -> dict[str, Any]:
        subwords, spans = self.subwords.encode_with_offsets(passage.text)
        questions = []
        for question in passage.questions:
            covered = (self._covering(spans, passage, question, a) for a in question.answers)
            answers = [span for span in covered if span is not None]
            # Such a question would teach that the passage has no answer; but the scorer needs all of valid.
            if self.name == "train" and question.answers and not answers:
                continue
            self.counts["questions"] += 1
            self.counts["unanswerable"] += not question.answers
            self.counts["answers"] += len(answers)
            # Annotators often agree: keep each distinct answer once, in order.
            kept = list(dict.fromkeys(answers))
            text = " ".join(self.subwords.encode(question.text.strip()))
            questions.append({"id": question.id, "subwords": text, "answers": kept})
        self.counts["skipped"] = len(self.skipped)
        self.counts["subwords"] += len(subwords)
        self.counts["unknown"] += sum(subword not in self.known for subword in subwords)
        return {
            "passage": passage.text,
            "subwords": " ".join(subwords),
            "starts": [start for start, _ in spans],
            "ends": [end for _, end in spans],
            "questions": questions,
        }

    def _covering(
        self, spans: list[tuple[int, int]], passage: Passage, question: Question, answer: Answer
    ) -> tuple[int, int] | None:
        start = _start_of(passage.text, answer)
        end = start + len(answer.text)
        inside = [k for k, (a, b) in enumerate(spans) if max(a, start) < min(b, end)]
        if start < 0 or not inside:
            self.skipped.append(question.id)
            return None
        if start != answer.start:
            self.moved.append(question.id)
        return inside[0], inside[-1]


def _start_of(passage: str, answer: Answer) -> int:
    """Return where the answer begins: at its offset or at most two characters away, else -1."""
    for slip in sorted(range(-_SLIP, _SLIP + 1), key=abs):
        start = answer.start + slip
        if start >= 0 and passage.startswith(answer.text, start):
            return start
    return -1
