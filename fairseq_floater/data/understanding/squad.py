"""Make of SQuAD's official files what the task ``floater_question_answering`` reads.

A folder holds ``dict.txt`` and ``bpe`` of the text that the model was trained on, ``train.jsonl`` and
``valid.jsonl``, ``references.valid.json`` (the official file, for the scorer) and ``summary.json``. A line
of a split is a passage: its text, its subwords, the characters of each, and its questions with their
answers as subwords from ... to.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.products import PreparedFolder
from fairseq_floater.data.understanding.binarise import Binarised, Vocabulary, check_dictionary
from fairseq_floater.data.understanding.squad_files import (
    Answer,
    Passage,
    Squad,
    SquadError,
    read_squad,
)
from fairseq_floater.data.understanding.subwords import FOLDER
from fairseq_floater.data.understanding.task_data import TaskData
from fairseq_floater.errors import shown

# Questions as published; other numbers are fine for other data, so they are only warned of.
PUBLISHED = {
    "1.1": {"train": 87_599, "valid": 10_570},
    "2.0": {"train": 130_319, "valid": 11_873},
}
_NAMES = {"train": "train", "valid": "dev"}
# Characters that an offset may be wrong by. Further away the same words are another mention.
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
    """Write ``out_dir`` whole or not at all; what the same files made is kept.

    Args:
        raw_dir: the folder of the official files.
        out_dir: where the prepared data go.
        vocabulary: subwords and dictionary of the model to be trained.
        version: 1.1 or 2.0; None: the one that ``raw_dir`` holds.
        train, valid: files of ``raw_dir``, or paths, instead of the official names.
        force: replace data that other files made.

    Raises:
        UserError: a file that is missing or cannot be used, or other data are in the way.
    """
    files = _files(raw_dir, version, {"train": train, "valid": valid})
    names = {split: path.name for split, (path,) in files.items()}
    parameters = {"task": "squad", "version": version, **names}
    return _SquadData("SQuAD", files, vocabulary, version).prepare(out_dir, parameters, force)


def _files(raw: Path, version: str | None, given: dict[str, Path | None]) -> dict[str, list[Path]]:
    if version is None and None in given.values():
        missing = [split for split, path in given.items() if path is None]
        names = {v: [f"{_NAMES[split]}-v{v}.json" for split in missing] for v in PUBLISHED}
        held = [v for v in PUBLISHED if all((raw / name).is_file() for name in names[v])]
        if len(held) != 1:
            number = "both" if held else "neither"
            wanted = " or ".join(" and ".join(names[v]) for v in PUBLISHED)
            remedy = "choose by --data-version" if held else "name files by --train and --valid"
            raise SquadError(f"{raw} must hold {wanted}, but holds {number}; {remedy}.")
        version = held[0]
    return {
        split: [raw / (f"{_NAMES[split]}-v{version}.json" if path is None else path)]
        for split, path in given.items()
    }


@dataclass
class _SquadData(TaskData):
    version: str | None

    def __post_init__(self) -> None:
        lines = self.vocabulary.dictionary.read_text(encoding="utf-8").split("\n")
        self.known = {line.rpartition(" ")[0] for line in lines}

    def read(self, split: str) -> Squad:
        return read_squad(self.files[split][0])

    def facts(self, examples: dict[str, Squad]) -> dict[str, Any]:
        """Return the version of all files; refuse files of different ones."""
        version = self.version or examples["train"].version
        for split, squad in examples.items():
            if squad.version != version:
                rule = f"{self.files[split][0]} must be SQuAD {version}"
                raise SquadError(f"{rule}, but is {squad.version} instead.")
        return {"version": version}

    def write(self, work: Path, split: str, examples: Squad) -> tuple[dict[str, int], list[str]]:
        source, dictionary = self.files[split][0], self.vocabulary.dictionary
        names = ("passages", "questions", "unanswerable", "answers", "subwords", "unknown")
        counts = dict.fromkeys(names, 0)
        moved: list[str] = []  # ids of questions
        with (work / f"{split}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for passage in examples.passages:
                entry = self._entry(passage, source, moved)
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
                self._count(passage, entry, counts)
        binarised = Binarised(counts["passages"], counts["subwords"], counts["unknown"])
        check_dictionary(binarised, dictionary, str(source))
        if split == "valid":
            shutil.copyfile(source, work / "references.valid.json")
            shutil.copyfile(dictionary, work / "dict.txt")
            self.vocabulary.subwords.store(work / FOLDER)
        warnings = []
        published = PUBLISHED[examples.version][split]
        if counts["questions"] != published:
            warnings.append(
                f"{source} has {counts['questions']:,} questions, not the {published:,} of the "
                "published file."
            )
        if moved:
            warnings.append(
                f"{source} has {len(moved):,} answers beside their offsets, at most {_SLIP} "
                f"characters away; they were moved (the first: question {moved[0]})."
            )
        return counts, warnings

    def _entry(self, passage: Passage, source: Path, moved: list[str]) -> dict[str, Any]:
        """Return what is written of a passage; adds the questions whose answers are moved."""
        subwords, spans = self.vocabulary.subwords.encode_with_offsets(passage.text)
        questions = []
        for question in passage.questions:
            place = f"{source}: question {question.id}"
            answers = []
            for answer in question.answers:
                start = _place(passage.text, answer, place)
                if start != answer.start:
                    moved.append(question.id)
                answers.append(_covering(spans, start, answer.text, place))
            # Annotators often agree; each different answer is kept once, the first one first.
            kept = list(dict.fromkeys(answers))
            text = self.vocabulary.subwords.encode(question.text.strip())
            questions.append({"id": question.id, "subwords": " ".join(text), "answers": kept})
        return {
            "passage": passage.text,
            "subwords": " ".join(subwords),
            "starts": [start for start, _ in spans],
            "ends": [end for _, end in spans],
            "questions": questions,
        }

    def _count(self, passage: Passage, entry: dict[str, Any], counts: dict[str, int]) -> None:
        counts["passages"] += 1
        counts["subwords"] += len(entry["starts"])
        subwords = entry["subwords"].split(" ")
        counts["unknown"] += sum(subword not in self.known for subword in subwords)
        for question in passage.questions:
            counts["questions"] += 1
            counts["unanswerable"] += not question.answers
            counts["answers"] += len(question.answers)


def _place(passage: str, answer: Answer, place: str) -> int:
    """Return where the answer begins: at its offset, or the nearest place at most two characters away."""
    for slip in sorted(range(-_SLIP, _SLIP + 1), key=abs):
        start = answer.start + slip
        if start >= 0 and passage.startswith(answer.text, start):
            return start
    text = shown(passage[max(answer.start, 0) :][: len(answer.text)])
    rule = f"must have its answer {shown(answer.text)} at character {answer.start} of the passage"
    raise SquadError(f"{place} {rule}, but {text} is there instead.")


def _covering(spans: list[tuple[int, int]], start: int, answer: str, place: str) -> tuple[int, int]:
    """Return the first and the last subword that hold a character of the answer."""
    end = start + len(answer)
    inside = [k for k, (a, b) in enumerate(spans) if max(a, start) < min(b, end)]
    if not inside:
        rule = f"must have its answer {shown(answer)} in the subwords of the passage"
        raise SquadError(f"{place} {rule}, but they hold no character of it.")
    return inside[0], inside[-1]
