"""Draw the examples of tasks that are made by a rule, trained on short and tested on long ones.

Ontañón et al. 2022, as their published code makes them (200,000 examples train, 1,024 test):
    addition: two numbers of 1 to 8 digits, each padded on the left with 0 to 12 digits, and their sum,
        padded likewise; tested with 9 and 10 digits. Here, but not there, leading zeros count as padding
    addition-negatives: the same with a minus before a quarter of the numbers, and # for padding
    reverse: 1 to 16 digits backwards; tested with 17 to 24
    duplicate: 1 to 16 digits twice; tested with 17 to 24
    cartesian: two sequences of 1 to 6 symbols, digits and letters, and every pair of the first with the
        second, a separator after each; tested with 7 and 8 symbols
    intersection: two sets of 1 to 16 of a hundred elements, and whether they share one (half of them do);
        tested with 17 to 24
Delétang et al. 2023, who train on 1 to 40 symbols and test up to 500; here up to 80:
    sort: symbols 0 to 4 in rising order
    odds-first: bits, those at places 1, 3, 5, ..., then those at 2, 4, 6, ...
    copy: digits as they are (not a task of theirs, in the same lengths)

Every symbol is a word; ``|`` separates. The lengths of an example are equally likely.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fairseq_floater.data.understanding.quiz_lists import Draws

SEPARATOR = "|"
_WIDTH = 12
_Span = tuple[int, int]


class Example(NamedTuple):
    """The words of both sides, and the length that decides whether it is for training or testing."""

    source: list[str]
    target: list[str]
    length: int


class Task(NamedTuple):
    """The function that draws an example of a span of lengths, and the spans for training and testing."""

    draw: Callable[[Draws, _Span], Example]
    trained: _Span
    tested: _Span


def _symbols(draws: Draws, count: int, alphabet: str) -> list[str]:
    return [alphabet[draws.below(len(alphabet))] for _ in range(count)]


def _changed(
    change: Callable[[list[str]], list[str]], alphabet: str = "0123456789"
) -> Callable[[Draws, _Span], Example]:
    def draw(draws: Draws, span: _Span) -> Example:
        words = _symbols(draws, draws.within(span), alphabet)
        return Example(words, change(words), len(words))

    return draw


def _add(draws: Draws, span: _Span, *, signed: bool) -> Example:
    padding, numbers, lengths = "#" if signed else "0", [], []
    for _ in range(2):
        digits = "".join(_symbols(draws, draws.within(span), "0123456789"))
        sign = "-" if signed and draws.below(4) == 0 else ""
        numbers.append(sign + digits)
        # Padding by 0 hides zeros in front.
        lengths.append(len(digits if signed else digits.lstrip("0")) or 1)
    if max(lengths) < span[0]:
        return _add(draws, span, signed=signed)
    total = sum(map(int, numbers))
    first, second = (number.rjust(_WIDTH, padding) for number in numbers)
    # For the sum 0, the published code writes only padding.
    target = (str(total) if total else "").rjust(_WIDTH, padding)
    return Example([*first, SEPARATOR, *second], [*target], max(lengths))


def _multiply(draws: Draws, span: _Span) -> Example:
    lengths = [draws.within(span) for _ in range(2)]
    first = _symbols(draws, lengths[0], "0123456789")
    second = _symbols(draws, lengths[1], "abcdefghij")
    target = [word for a in first for b in second for word in (a, b, SEPARATOR)]
    return Example([*first, SEPARATOR, *second], target, max(lengths))


def _intersect(draws: Draws, span: _Span) -> Example:
    def element() -> str:
        return "abcdefghij"[draws.below(10)] + str(draws.below(10))

    lengths = [draws.within(span) for _ in range(2)]
    meets = draws.below(2) == 1
    first = list(dict.fromkeys(element() for _ in range(lengths[0])))
    second: list[str] = []
    while len(second) < lengths[1]:
        new = element()
        if new not in second and (meets or new not in first):
            second.append(new)
    if meets and not {*first} & {*second}:
        second[draws.below(len(second))] = first[draws.below(len(first))]
    target = ["true" if meets else "false"]
    return Example([*first, SEPARATOR, *second], target, max(len(first), len(second)))


TASKS = {
    "addition": Task(partial(_add, signed=False), (1, 8), (9, 10)),
    "addition-negatives": Task(partial(_add, signed=True), (1, 8), (9, 10)),
    "reverse": Task(_changed(lambda words: words[::-1]), (1, 16), (17, 24)),
    "duplicate": Task(_changed(lambda words: words * 2), (1, 16), (17, 24)),
    "cartesian": Task(_multiply, (1, 6), (7, 8)),
    "intersection": Task(_intersect, (1, 16), (17, 24)),
    "copy": Task(_changed(list), (1, 40), (41, 80)),
    "sort": Task(_changed(sorted, "01234"), (1, 40), (41, 80)),
    "odds-first": Task(_changed(lambda words: words[::2] + words[1::2], "01"), (1, 40), (41, 80)),
}
