"""Prepare RACE (Lai et al., 2017) for fairseq's sentence_ranking: a passage, four options, an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.products import PreparedFolder
from fairseq_floater.data.understanding.binarise import Vocabulary
from fairseq_floater.data.understanding.task_data import TaskData
from fairseq_floater.errors import UsageError, shown
from fairseq_floater.files import write_text
from fairseq_floater.records import read_json

GROUPS = ("middle", "high")
LETTERS = "ABCD"
_SPLITS = {"train": "train", "valid": "dev", "test": "test"}
PUBLISHED = {"train": 87_866, "valid": 4_887, "test": 4_934}
_OPTION_LENGTH = 128
_SHAPE = {"article": str, "answers": [str], "options": [[str]], "questions": [str]}
# <s> option </s> </s> passage </s>
_OPTION_ENDS, _PASSAGE_ENDS = 2, 2


class RaceQuestion(NamedTuple):
    """One question: its name, the text of the passage and of each option, and the right letter."""

    name: str
    group: str
    passage: str
    options: tuple[str, ...]
    answer: str


def prepare(
    raw_dir: Path,
    out_dir: Path,
    vocabulary: Vocabulary,
    *,
    max_positions: int = 512,
    max_option_length: int | None = None,
    force: bool = False,
) -> PreparedFolder:
    """Write ``input0`` (passages), ``input1`` to ``input4`` (question and option) and ``label``.

    Questions are sorted by group, file number and place in the file. The option fills the blank ``_``
    of a question, or follows a question without blank. ``references.<split>.json`` has
    {question: {"answer": letter, "group": group}} in the order of the data.

    Args:
        raw_dir: holds ``{train,dev,test}/{middle,high}/*.txt``; test may be missing.
        max_positions: the most tokens of an option, a passage and the four symbols around them. Longer
            passages lose their end, but keep their end symbol.
        max_option_length: the most tokens of an option with its ``<s>`` and ``</s>``. Longer options keep
            their end symbol too, and fairseq's option of the same name has nothing to cut. None:
            RoBERTa's 128, or half of ``max_positions`` if that is less.
    """
    if max_option_length is None:
        max_option_length = min(_OPTION_LENGTH, max_positions // 2)
    if not _OPTION_ENDS < max_option_length <= max_positions - _PASSAGE_ENDS:
        raise UsageError(
            f"`--max-option-length` must be above {_OPTION_ENDS} and leave room for a passage in "
            f"--max-positions {max_positions}, but is {max_option_length}."
        )
    files = {split: _files(raw_dir / folder) for split, folder in _SPLITS.items()}
    for split in ("train", "valid"):
        if not files[split]:
            folder = raw_dir / _SPLITS[split]
            raise TextDataError(f"{folder}/middle and {folder}/high must hold the files of RACE.")
    parameters = {"max_positions": max_positions, "max_option_length": max_option_length}
    files = {split: paths for split, paths in files.items() if paths}
    data = _RaceData("RACE", files, vocabulary, max_positions, max_option_length)
    return data.prepare(out_dir, parameters, force)


def _files(folder: Path) -> list[Path]:
    """Return the files of a split: middle before high, by number."""
    paths = [path for group in GROUPS for path in (folder / group).glob("*.txt")]
    return sorted(paths, key=lambda p: (GROUPS.index(p.parent.name), len(p.name), p.name))


def read_questions(path: Path) -> list[RaceQuestion]:
    """Read one file: a passage with its questions."""
    fields = read_json(path, _SHAPE)
    columns = [fields[name] for name in ("answers", "options", "questions")]
    if len({len(column) for column in columns}) != 1:
        raise TextDataError(f"{path} must have as many answers as options and questions.")
    group, passage, questions = path.parent.name, _one_line(fields["article"]), []
    for number, (answer, options, question) in enumerate(zip(*columns)):
        name = f"{group}/{path.stem}/{number}"
        if answer not in [*LETTERS]:
            raise TextDataError(
                f"{path}: answer {number + 1} must be A to D, but is {shown(answer)}."
            )
        if len(options) != len(LETTERS):
            raise TextDataError(f"{path}: question {number + 1} must have four options.")
        has_blank = "_" in question
        texts = [question.replace("_", o) if has_blank else f"{question} {o}" for o in options]
        questions.append(RaceQuestion(name, group, passage, tuple(map(_one_line, texts)), answer))
    return questions


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass
class _RaceData(TaskData):
    max_positions: int
    max_option_length: int

    def read(self, split: str) -> list[RaceQuestion]:
        paths = self.files[split]
        questions = [question for path in paths for question in read_questions(path)]
        if not questions:
            raise TextDataError(f"{paths[0].parent.parent} must hold questions, but holds none.")
        return questions

    def write(
        self, work: Path, split: str, examples: list[RaceQuestion]
    ) -> tuple[dict[str, int], list[str]]:
        counts = self._write_texts(work, split, examples)
        right = "".join(f"{LETTERS.index(question.answer)}\n" for question in examples)
        write_text(work / "label" / f"{split}.label", right)
        references = {q.name: {"answer": q.answer, "group": q.group} for q in examples}
        write_text(work / f"references.{split}.json", json.dumps(references, indent=1) + "\n")
        return counts, self.size_warnings(split, counts, PUBLISHED[split])

    def _write_texts(self, work: Path, split: str, questions: list[RaceQuestion]) -> dict[str, int]:
        counts = {"questions": len(questions)}
        counts |= dict.fromkeys(("subwords", "unknown", "cut_options", "cut_passages"), 0)
        encode = self.vocabulary.subwords.encode_lines
        passages = encode([question.passage for question in questions])
        options = [encode(list(column)) for column in zip(*(q.options for q in questions))]
        for column in options:
            for line in column:
                counts["cut_options"] += _cut(line, self.max_option_length - _OPTION_ENDS)
        for passage, *beside in zip(passages, *options):
            room = self.max_positions - _OPTION_ENDS - _PASSAGE_ENDS - max(map(len, beside))
            counts["cut_passages"] += _cut(passage, room)
        return counts | self.write_inputs(work, split, [passages, *options])


def _cut(line: list[str], length: int) -> bool:
    longer = len(line) > length
    del line[length:]
    return longer
