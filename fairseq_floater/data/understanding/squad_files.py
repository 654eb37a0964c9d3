"""Read SQuAD's official JSON, 1.1 and 2.0, strictly: errors name the file and the place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.records import read_json

_ANSWER = {"text": str, "answer_start": int}
_QUESTION = {"id": str, "question": str, "answers": [_ANSWER], "is_impossible?": bool}
_SHAPE = {"data": [{"paragraphs": [{"context": str, "qas": [_QUESTION]}]}]}


@dataclass(frozen=True)
class Answer:
    """An answer, and the character of the passage where it is said to begin."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question; it has no answers if the passage does not answer it, which 2.0 allows."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Passage:
    """A paragraph and the questions about it."""

    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Squad:
    """A file of SQuAD; ``version`` is 2.0 if the file says so or a question has ``is_impossible``."""

    version: str
    passages: tuple[Passage, ...]

    @property
    def questions(self) -> list[Question]:
        return [question for passage in self.passages for question in passage.questions]


def read_squad(path: Path) -> Squad:
    """Read a file of questions in SQuAD's official format.

    Raises:
        ReportError: the file has another format.
        TextDataError: an id comes twice, an answer is empty, a question has none (in 2.0: and is not
            ``is_impossible``), or an ``is_impossible`` question has one.
    """
    content = read_json(path, _SHAPE)
    paragraphs = [paragraph for article in content["data"] for paragraph in article["paragraphs"]]
    items = [item for paragraph in paragraphs for item in paragraph["qas"]]
    if not items:
        raise TextDataError(f"{path} must hold questions, but holds none.")
    is_v2 = content.get("version") in ("2.0", "v2.0")
    is_v2 |= any("is_impossible" in item for item in items)
    ids = set()
    for item in items:
        if item["id"] in ids:
            raise TextDataError(f"{path}: every id must occur once, but {item['id']} comes twice.")
        ids.add(item["id"])
        _check_answers(item, is_v2, path)
    passages = (Passage(p["context"], tuple(map(_question, p["qas"]))) for p in paragraphs)
    return Squad("2.0" if is_v2 else "1.1", tuple(passages))


def _question(item: dict[str, Any]) -> Question:
    answers = (Answer(answer["text"], answer["answer_start"]) for answer in item["answers"])
    return Question(item["id"], item["question"], tuple(answers))


def _check_answers(item: dict[str, Any], is_v2: bool, path: Path) -> None:
    where, answers = f"{path}: question {item['id']}", item["answers"]
    impossible = item.get("is_impossible", False)
    if impossible and answers:
        raise TextDataError(f"{where} is_impossible, but has {len(answers)} answers.")
    if not impossible and not answers:
        rule = "which every question of 1.1 must have"
        if is_v2:
            rule = "but is not marked is_impossible"
        raise TextDataError(f"{where} has no answer, {rule}.")
    if not all(answer["text"].strip() for answer in answers):
        raise TextDataError(f"{where} has an empty answer.")
