"""Read SQuAD's official JSON, 1.1 and 2.0, strictly: every fault is named by file and place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UserError, shown
from fairseq_floater.records import read_object


class SquadError(UserError):
    """Report a file that cannot be used, in one sentence for a person."""


@dataclass(frozen=True)
class Answer:
    """An answer, and the character of the passage where it is said to begin."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question; without answers it is one of 2.0 that the passage does not answer."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Passage:
    """A paragraph and what is asked about it."""

    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Squad:
    """A file of SQuAD's; ``version`` is 2.0 where the file or a question's ``is_impossible`` says so."""

    version: str
    passages: tuple[Passage, ...]

    @property
    def questions(self) -> list[Question]:
        """Return all questions, in the file's order."""
        return [question for passage in self.passages for question in passage.questions]


def read_squad(path: Path) -> Squad:
    """Read a file of questions in SQuAD's official form.

    Raises:
        SquadError: another form, an id that comes twice, or answers that are missing (1.1: any question
            without one; 2.0: one that is not ``is_impossible``) or too many.
    """
    content = read_object(path)
    articles = _field(content, "data", list, f"{path}: the file")
    passages = []
    for number, article in enumerate(articles, start=1):
        place = f"{path}: article {number}"
        _require(isinstance(article, dict), place, "must be an object", article)
        for k, paragraph in enumerate(_field(article, "paragraphs", list, place), start=1):
            passages.append(_passage(paragraph, f"{place}, paragraph {k}"))
    if not any(passage.questions for passage, _ in passages):
        raise SquadError(f"{path} must hold questions, but holds none.")
    second = content.get("version") in ("2.0", "v2.0") or any(flags for _, flags in passages)
    squad = Squad("2.0" if second else "1.1", tuple(passage for passage, _ in passages))
    _check_ids(squad, path)
    for passage, flags in passages:
        for question in passage.questions:
            _check_answers(question, second, flags.get(question.id, False), path)
    return squad


def _field(holder: dict[str, Any], name: str, kind: type, place: str) -> Any:
    if name not in holder:
        raise SquadError(f"{place} must have the field {name!r}, which is missing.")
    value = holder[name]
    # A bool is an int to Python.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        rule = f"must have {_KINDS[kind]} as its field {name!r}"
        raise SquadError(f"{place} {rule}, but has {shown(value)} instead.")
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        raise SquadError(f"{place} has half a character (a lone surrogate) in its field {name!r}.")
    return value


_KINDS = {list: "a list", str: "a text", int: "a whole number", bool: "true or false"}
# JSON's escapes can write what no UTF-8 text holds.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _require(holds: bool, place: str, rule: str, value: object) -> None:
    if not holds:
        raise SquadError(f"{place} {rule}, but is {shown(value)} instead.")


def _passage(paragraph: Any, place: str) -> tuple[Passage, dict[str, bool]]:
    """Return a passage, and ``is_impossible`` of the questions that have it."""
    _require(isinstance(paragraph, dict), place, "must be an object", paragraph)
    text = _field(paragraph, "context", str, place)
    questions, flags = [], {}
    for number, item in enumerate(_field(paragraph, "qas", list, place), start=1):
        spot = f"{place}, question {number}"
        _require(isinstance(item, dict), spot, "must be an object", item)
        question = Question(
            _field(item, "id", str, spot),
            _field(item, "question", str, spot),
            tuple(_answer(answer, spot) for answer in _field(item, "answers", list, spot)),
        )
        questions.append(question)
        if "is_impossible" in item:
            flags[question.id] = _field(item, "is_impossible", bool, spot)
    return Passage(text, tuple(questions)), flags


def _answer(answer: Any, place: str) -> Answer:
    spot = f"{place}: an answer"
    _require(isinstance(answer, dict), spot, "must be an object", answer)
    return Answer(_field(answer, "text", str, spot), _field(answer, "answer_start", int, spot))


def _check_ids(squad: Squad, path: Path) -> None:
    seen: set[str] = set()
    for question in squad.questions:
        if not question.id:
            raise SquadError(f"{path}: every question must have an id, but one has an empty id.")
        if question.id in seen:
            raise SquadError(f"{path}: every id must be there once, but {question.id} comes twice.")
        seen.add(question.id)


def _check_answers(question: Question, second: bool, impossible: bool, path: Path) -> None:
    place = f"{path}: question {question.id}"
    if impossible and question.answers:
        raise SquadError(f"{place} is_impossible, but has {len(question.answers)} answers.")
    if not impossible and not question.answers:
        rule = " and is not is_impossible" if second else ", which every question of 1.1 must have"
        raise SquadError(f"{place} has no answer{rule}.")
    if not all(answer.text.strip() for answer in question.answers):
        raise SquadError(f"{place} has an empty answer.")
