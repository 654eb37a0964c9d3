"""Compare two answers as SQuAD's official evaluation defines it: normalised text, exact match and F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(answer: str) -> list[str]:
    """Return the words that count: lower case, without ASCII punctuation, without English articles.

    Articles go after the punctuation, so that "a." is one as well.
    """
    return _ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split()


def exact_match(answer: str, gold: str) -> float:
    """Return 1 where the words are the same, in the same order, else 0."""
    return float(words(answer) == words(gold))


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall of the words, each as often as it comes.

    Where one side has no words, it is 1 if the other has none either.
    """
    ours, theirs = words(answer), words(gold)
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def best(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 against the nearest of several right answers, each by itself.

    Right answers without a word do not count; where none is left, the right one is no answer.
    """
    counted = [gold for gold in golds if words(gold)] or [""]
    return (
        max(exact_match(answer, gold) for gold in counted),
        max(f1(answer, gold) for gold in counted),
    )
