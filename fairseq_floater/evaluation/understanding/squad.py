"""Score predictions on SQuAD 1.1 or 2.0 as the official script does, with its names of scores."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.data.understanding.squad_files import Question, read_squad
from fairseq_floater.errors import ReportError, UsageError, say, shown
from fairseq_floater.evaluation.understanding.answers import Scores, check_ids
from fairseq_floater.records import read_json

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(
    predictions: Path,
    references: Path,
    na_prob: Path | None = None,
    na_prob_thresh: float | None = None,
) -> Scores:
    """Score a file of answers against SQuAD's own file of questions.

    Args:
        predictions: JSON, {id: answer}; an empty answer says that there is none.
        references: SQuAD 1.1 or 2.0 in the official format.
        na_prob: JSON, {id: confidence that there is no answer}; adds the best threshold to the scores.
        na_prob_thresh: an answer counts as none if its ``na_prob`` is higher. Default: 1, as in the
            official script, which no probability exceeds.

    Raises:
        UserError: a file has another format, or ids are missing, unknown or duplicate.
    """
    if na_prob_thresh is not None and na_prob is None:
        raise UsageError("`--na-prob-thresh` is a threshold of `--na-prob FILE`: give both.")
    squad = read_squad(references)
    questions = squad.questions
    answers = _by_id(predictions, references, questions, str, "an answer as text")
    raw = {q.id: best(answers[q.id], [gold.text for gold in q.answers]) for q in questions}
    if squad.version == "2.0" and na_prob_thresh is None and all(answers.values()):
        say(
            "warning: every prediction is an answer, so each question without an answer counts as "
            "wrong; to decide by probabilities, give --na-prob FILE --na-prob-thresh 0.5."
        )
    final, thresholds = raw, dict[str, float]()
    if na_prob is not None:
        nothing = _by_id(na_prob, references, questions, float, "a number")
        limit = 1.0 if na_prob_thresh is None else na_prob_thresh
        final = {
            q.id: (float(not q.answers),) * 2 if nothing[q.id] > limit else raw[q.id]
            for q in questions
        }
        for k, name in enumerate(("exact", "f1")):
            scores = {id_: both[k] for id_, both in raw.items()}
            highest, limit = best_threshold(questions, answers, scores, nothing)
            thresholds |= {f"best_{name}": highest, f"best_{name}_thresh": limit}
    fields = _means("", questions, final)
    fields |= _means("HasAns_", [q for q in questions if q.answers], final)
    fields |= _means("NoAns_", [q for q in questions if not q.answers], final)
    fields |= thresholds
    table = [f"SQuAD {squad.version}"]
    for name, value in fields.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        table.append(f"{name:20} {text:>12}")
    common = {"task": table[0], "metric": "f1", "score": fields["f1"], "n": fields["total"]}
    return Scores({**common, **fields}, table)


def _means(
    prefix: str, questions: Sequence[Question], scores: Mapping[str, tuple[float, float]]
) -> dict[str, float | int]:
    total = len(questions)
    if not total:
        return {}
    exact, f1 = (100.0 * sum(scores[q.id][k] for q in questions) / total for k in (0, 1))
    return {f"{prefix}exact": exact, f"{prefix}f1": f1, f"{prefix}total": total}


def best_threshold(
    questions: Sequence[Question],
    answers: Mapping[str, str],
    scores: Mapping[str, float],
    nothing: Mapping[str, float],
) -> tuple[float, float]:
    """Return the best mean score, in per cent, of any threshold on ``nothing``, and that threshold.

    The threshold rises from question to question, and each in turn keeps its answer. Questions of equal
    ``nothing`` are taken one by one in the order of the file, like the official script does. So the mean
    reported may be one that no threshold gives.

    Args:
        scores: exact match or F1 of the answers by id, 0 to 1.
        nothing: confidence that there is no answer, by id, in the order of the file.
    """
    answerable = {question.id: bool(question.answers) for question in questions}
    now: float = sum(not has for has in answerable.values())
    highest, threshold = now, 0.0
    for id_ in sorted(nothing, key=nothing.__getitem__):
        if answerable[id_]:
            now += scores[id_]
        elif answers[id_]:
            now -= 1
        if now > highest:
            highest, threshold = now, nothing[id_]
    return 100.0 * highest / len(questions), threshold


def _by_id(
    path: Path, references: Path, questions: Sequence[Question], kind: type, what: str
) -> dict[str, Any]:
    content: dict[str, Any] = read_json(path, dict)
    check_ids(content, [question.id for question in questions], (path, references))
    for id_, value in content.items():
        if not (_is_finite(value) if kind is float else isinstance(value, kind)):
            rule = f"{path} must have {what} for each question"
            raise ReportError(f"{rule}, but has {shown(value)} for {id_}.")
    return content


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and abs(value) < math.inf


def words(answer: str) -> list[str]:
    """Return the words of an answer in lower case, without ASCII punctuation and English articles.

    Punctuation is removed first, so "a." counts as an article.
    """
    return _ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split()


def exact_match(answer: str, gold: str) -> float:
    return float(words(answer) == words(gold))


def f1(answer: str, gold: str) -> float:
    """Return F1 of the words; a repeated word counts as often as it occurs.

    If one side has no words, F1 is 1 if the other has none either, else 0.
    """
    predicted, right = words(answer), words(gold)
    if not predicted or not right:
        return float(predicted == right)
    common = (Counter(predicted) & Counter(right)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)


def best(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return the highest exact match and the highest F1 over several right answers.

    Right answers without a word do not count. If no other is left, the right answer is the empty one.
    """
    counted = [gold for gold in golds if words(gold)] or [""]
    return (
        max(exact_match(answer, gold) for gold in counted),
        max(f1(answer, gold) for gold in counted),
    )
