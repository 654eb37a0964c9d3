"""Score answers to RACE: accuracy over all questions, and over those of each group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sklearn.metrics import accuracy_score

from fairseq_floater.data.understanding.race import GROUPS, LETTERS
from fairseq_floater.errors import ReportError, shown
from fairseq_floater.evaluation.understanding.answers import check_ids
from fairseq_floater.records import read_object


@dataclass(frozen=True)
class RaceScore:
    """Accuracy in per cent, of all questions and by group."""

    score: float
    n: int
    groups: dict[str, tuple[float, int]]

    def format_text(self) -> str:
        rows = {"all": (self.score, self.n), **self.groups}
        return "\n".join(["RACE"] + [f"{k:<8}{v:>8.2f}{n:>10,}" for k, (v, n) in rows.items()])

    def to_json_dict(self) -> dict[str, Any]:
        """Return all fields on one level; a group without questions has none."""
        scores = {group: value for group, (value, _) in self.groups.items()}
        sizes = {f"n_{group}": n for group, (_, n) in self.groups.items()}
        common = {"task": "RACE", "metric": "accuracy", "score": self.score}
        return {**common, **scores, "n": self.n, **sizes}


def score(predictions: Path, references: Path) -> RaceScore:
    """Score a file of answers.

    Args:
        predictions: JSON {question: letter}, in any order.
        references: JSON {question: {"answer": letter, "group": group}}, as ``floater race prepare``
            writes them.

    Raises:
        ReportError: a question is missing, double or unknown, or an answer is no letter A to D.
    """
    answers, right = read_object(predictions), read_object(references)
    check_ids(answers, right, (predictions, references))
    for name, answer in answers.items():
        _check_letter(answer, name, predictions)
    for name, reference in right.items():
        if not isinstance(reference, dict) or reference.get("group") not in GROUPS:
            raise ReportError(f"{references}, {shown(name)}: must have a `group`, middle or high.")
        _check_letter(reference.get("answer"), name, references)
    score, n = _accuracy(answers, right, list(right))
    by_group = {g: [name for name in right if right[name]["group"] == g] for g in GROUPS}
    groups = {g: _accuracy(answers, right, names) for g, names in by_group.items() if names}
    return RaceScore(score, n, groups)


def _accuracy(
    answers: dict[str, Any], right: dict[str, Any], names: list[str]
) -> tuple[float, int]:
    wanted = [right[name]["answer"] for name in names]
    return 100 * float(accuracy_score(wanted, [answers[name] for name in names])), len(names)


def _check_letter(answer: object, name: str, path: Path) -> None:
    if answer not in [*LETTERS]:
        raise ReportError(f"{path}, {shown(name)}: must be A to D, but is {shown(answer)}.")
