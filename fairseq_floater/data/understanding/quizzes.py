"""Write a built-in substitute for RoBERTa's data: quizzes on lists of number words, in official formats.

    OUT/mlm/{train,valid}.txt                       a paragraph per line, an empty line between documents
    OUT/glue/{CoLA,SST-2,...}/{train,dev}.tsv       as gluebenchmark.com gives them (MNLI: two dev files)
    OUT/race/{train,dev,test}/{middle,high}/N.txt   as RACE: a JSON object per passage
    OUT/squad/{train,dev}-{v1.1,v2.0}.json          as SQuAD

It needs no download, every answer is right by construction, and most depend on the order of the words. The
same arguments give the same bytes on every machine that has the same num2words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from fairseq_floater.data.products import PreparedFolder, make_folder
from fairseq_floater.data.understanding.quiz_lists import Draws
from fairseq_floater.data.understanding.quiz_questions import (
    GLUE,
    paragraphs,
    race_questions,
    squad_questions,
)
from fairseq_floater.errors import UsageError

# Size of each split at scale 1: documents, pairs of sentences, passages of each level, passages.
MLM = {"train": 12_000, "dev": 300}
PAIRS = {"train": 4_000, "dev": 400}
RACE = {"train": 1_200, "dev": 120, "test": 120}
SQUAD = {"train": 1_200, "dev": 120}
# Words per list: in the donor's text, MNLI's mismatched pairs, RACE's levels, and SQuAD.
MLM_SPAN = (3, 5)
MISMATCHED_SPAN = (7, 7)
RACE_SPANS = {"middle": (5, 5), "high": (6, 7)}
SQUAD_SPAN = (5, 8)
SQUAD_QUESTIONS = 4
PASSAGES_AN_ARTICLE = 10

# The official header, and the cells of a row; CoLA has no header.
_MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
    "sentence1_parse sentence2_parse sentence1 sentence2 label1",
    "{n} {n} {n}q numbers {0} {1} {0} {1} {0} {1} {label}",
)
_COLUMNS = {
    "CoLA": ("", "quiz {label} {mark} {0}"),
    "SST-2": ("sentence label", "{0} {label}"),
    "MRPC": ("Quality,#1 ID,#2 ID,#1 String,#2 String", "{label} {n}a {n}b {0} {1}"),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", "{n} {n}a {n}b {0} {1} {label}"),
    "STS-B": (
        "index genre filename year old_index source1 source2 sentence1 sentence2 score",
        "{n} numbers quiz none {n} none none {0} {1} {label}",
    ),
    "MNLI": (f"{_MNLI[0]} gold_label", f"{_MNLI[1]} {{label}}"),
    "QNLI": ("index question sentence label", "{n} {0} {1} {label}"),
    "RTE": ("index sentence1 sentence2 label", "{n} {0} {1} {label}"),
}
# MNLI's dev files have the labels of five annotators.
_MNLI_DEV = (
    f"{_MNLI[0]} label2 label3 label4 label5 gold_label",
    f"{_MNLI[1]}{' {label}' * 5}",
)


def write_quizzes(
    out_dir: Path, *, seed: int = 1, scale: float = 1.0, force: bool = False
) -> PreparedFolder:
    """Write all quizzes into ``out_dir``, whole or not at all.

    Args:
        scale: multiplies the examples of every split; at least one of each is written.
    """
    if not (isfinite(scale) and scale > 0):
        raise UsageError(f"`--scale` must be above 0, but is {scale}.")
    parameters = {"seed": seed, "scale": scale}
    build = partial(_build, seed=seed, scale=scale)
    return make_folder(out_dir, parameters, (), build, force=force)


def _build(work: Path, *, seed: int, scale: float) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {}
    for name, sizes, write in _parts(work):
        for split, size in sizes.items():
            draws = Draws(seed, name, split)
            counts.setdefault(name, {})[split] = write(draws, max(1, round(size * scale)))
    return {"splits": counts, "warnings": []}


def _parts(work: Path) -> Iterator[tuple[str, dict[str, int], Callable[[Draws, int], int]]]:
    """Yield each part's name, the sizes of its splits, and a function that writes examples of a split."""
    yield "mlm", MLM, partial(_write_text, work / "mlm")
    for task in GLUE:
        yield task, PAIRS, partial(_write_pairs, work / "glue" / task, task, None)
    mismatched = partial(_write_pairs, work / "glue" / "MNLI", "MNLI", MISMATCHED_SPAN)
    yield "MNLI-mm", {"dev": PAIRS["dev"]}, mismatched
    for level in RACE_SPANS:
        yield f"RACE {level}", RACE, partial(_write_race, work / "race", level)
    for version in ("1.1", "2.0"):
        yield f"SQuAD {version}", SQUAD, partial(_write_squad, work / "squad", version)


def _write(path: Path, chunks: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(chunks)


def _write_text(folder: Path, draws: Draws, count: int) -> int:
    documents = ("\n".join(paragraphs(f, draws)) for f in draws.lists(count, MLM_SPAN))
    name = "train" if draws.split == "train" else "valid"
    _write(folder / f"{name}.txt", (f"{document}\n\n" for document in documents))
    return count


def _write_pairs(
    folder: Path, task: str, span: tuple[int, int] | None, draws: Draws, count: int
) -> int:
    """Write the rows of a task of GLUE; ``span`` is given only for MNLI's mismatched lists."""
    pairs = GLUE[task]
    name, (head, cells) = draws.split, _COLUMNS[task]
    if task == "MNLI" and name == "dev":
        name, (head, cells) = f"dev_{'mis' if span else ''}matched", _MNLI_DEV

    def rows() -> Iterator[str]:
        if head:
            yield "\t".join(head.split("," if "," in head else " ")) + "\n"
        for n, numbers in enumerate(draws.lists(count, span or pairs.span)):
            label = pairs.labels[n % len(pairs.labels)]
            sentences = pairs.make(numbers, label, draws)
            mark = "*" if label == "0" else ""
            row = (cell.format(*sentences, n=n, label=label, mark=mark) for cell in cells.split())
            yield "\t".join(row) + "\n"

    _write(folder / f"{name}.tsv", rows())
    return count


def _write_race(folder: Path, level: str, draws: Draws, count: int) -> int:
    folder = folder / draws.split / level
    for number, numbers in enumerate(draws.lists(count, RACE_SPANS[level])):
        questions = list(race_questions(numbers))
        options, answers = [], []
        for index, question in enumerate(questions):
            right = (number + 2 * index) % 4  # each letter as often as the others
            shown = draws.shuffled(question.wrong)
            options.append([*shown[:right], str(question.answer), *shown[right:]])
            answers.append("ABCD"[right])
        content = {
            "answers": answers,
            "options": options,
            "questions": [question.text for question in questions],
            "article": " ".join(numbers),
            "id": f"{level}{number}.txt",
        }
        _write(folder / f"{number}.txt", [json.dumps(content)])
    return count * len(answers)


def _write_squad(folder: Path, version: str, draws: Draws, count: int) -> int:
    passages = [
        _passage(numbers, f"{version}-{draws.split}-{number}", version, draws)
        for number, numbers in enumerate(draws.lists(count, SQUAD_SPAN))
    ]
    starts = range(0, count, PASSAGES_AN_ARTICLE)
    data = [
        {"title": f"Lists_{start}", "paragraphs": passages[start : start + PASSAGES_AN_ARTICLE]}
        for start in starts
    ]
    content = {"version": version if version == "1.1" else f"v{version}", "data": data}
    _write(folder / f"{draws.split}-v{version}.json", [json.dumps(content)])
    return count * SQUAD_QUESTIONS


def _passage(numbers: Sequence[str], name: str, version: str, draws: Draws) -> dict[str, Any]:
    text = " ".join(numbers)
    has_unanswerable = version == "2.0"
    questions = []
    for number, question in enumerate(
        squad_questions(numbers, SQUAD_QUESTIONS, has_unanswerable, draws)
    ):
        entry: dict[str, Any] = {"question": question.text, "id": f"{name}-{number}"}
        answers = [_answer(text, answer) for answer in (question.answer, *question.wrong) if answer]
        is_impossible = question.answer is None
        entry |= (
            {"answers": [], "plausible_answers": answers} if is_impossible else {"answers": answers}
        )
        entry |= {"is_impossible": is_impossible} if has_unanswerable else {}
        questions.append(entry)
    return {"context": text, "qas": questions}


def _answer(text: str, answer: str) -> dict[str, Any]:
    """Return an answer and its offset, found as a whole word: "six" is also a part of "sixty"."""
    return {"text": answer, "answer_start": f" {text} ".index(f" {answer} ")}
