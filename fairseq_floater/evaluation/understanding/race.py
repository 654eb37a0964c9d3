"""Score answers to RACE: accuracy over all questions, and by group."""

from __future__ import annotations

from pathlib import Path

from fairseq_floater.data.understanding.race import GROUPS, LETTERS
from fairseq_floater.errors import ReportError, shown
from fairseq_floater.evaluation.understanding.answers import Scores, check_ids
from fairseq_floater.records import read_json


def score(predictions: Path, references: Path) -> Scores:
    """Score a file of answers by accuracy, over all questions and by group; empty groups are left out.

    Args:
        predictions: JSON {question: letter}, in any order.
        references: JSON {question: {"answer": letter, "group": group}}, as ``floater race prepare``
            writes them.

    Raises:
        ReportError: a question is missing, duplicate or unknown, or an answer is not a letter A to D.
    """
    answers, right = (read_json(path, dict) for path in (predictions, references))
    check_ids(answers, right, (predictions, references))
    for name, answer in answers.items():
        _check_letter(answer, name, predictions)
    for name, reference in right.items():
        if not isinstance(reference, dict) or reference.get("group") not in GROUPS:
            raise ReportError(f"{references}, {shown(name)}: must have a `group`, middle or high.")
        _check_letter(reference.get("answer"), name, references)
    names = {"all": list(right)}
    names |= {group: [n for n in right if right[n]["group"] == group] for group in GROUPS}
    sizes = {group: len(members) for group, members in names.items() if members}
    scores = {
        group: 100 * (sum(answers[n] == right[n]["answer"] for n in names[group]) / size)
        for group, size in sizes.items()
    }
    table = ["RACE"] + [f"{group:<8}{scores[group]:>8.2f}{n:>10,}" for group, n in sizes.items()]
    common = {"task": "RACE", "metric": "accuracy", "score": scores.pop("all")}
    of_groups = {f"n_{group}": n for group, n in sizes.items() if group != "all"}
    return Scores({**common, **scores, "n": sizes["all"], **of_groups}, table)


def _check_letter(answer: object, name: str, path: Path) -> None:
    if answer not in [*LETTERS]:
        raise ReportError(f"{path}, {shown(name)}: must be A to D, but is {shown(answer)}.")
