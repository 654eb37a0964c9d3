"""Draw the lists of number words behind the quizzes.

    nine two forty five

A list holds no word twice, so every question about it has one answer. A hash decides which split a
*set* of words belongs to: no list of another split holds the same words, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar

from fairseq_floater.data.number_words import each_once, phrase, stream

T = TypeVar("T")
# Numbers of one word each, in rising order: :func:`rank` is a place in this tuple.
NUMBERS = (*range(21), *range(30, 100, 10))
# Which sixteenths of all sets of words belong to which split.
SHARES = {"train": range(12), "dev": range(12, 14), "test": range(14, 16)}


@cache
def words() -> tuple[str, ...]:
    """Return the words of all lists, from zero to ninety."""
    return tuple(phrase(number, "en") for number in NUMBERS)


def rank(word: str) -> int:
    """Return a word's place among all words, from the smallest number to the largest."""
    return words().index(word)


class Draws:
    """Draw lists of one split, and random choices for them, from one stream of pseudo-random numbers.

    Args:
        quiz: a name; each quiz has its own stream, so the size of one does not change another.
    """

    def __init__(self, seed: int, quiz: str, split: str) -> None:
        self.seed, self.quiz, self.split = seed, quiz, split
        self._random = stream(f"stream {seed} {quiz} {split}")

    def below(self, count: int) -> int:
        """Return a whole number from 0 to ``count - 1``."""
        return int(self._random.random() * count)

    def within(self, span: tuple[int, int]) -> int:
        """Return a whole number of ``span``, both ends included."""
        return span[0] + self.below(span[1] - span[0] + 1)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in random order; every order is equally likely."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]

    def places(self, list_length: int) -> tuple[int, int]:
        """Return two places of a list, the smaller first."""
        first, second = self.below(list_length), self.below(list_length - 1)
        second += second >= first
        return min(first, second), max(first, second)

    def lists(self, count: int, span: tuple[int, int]) -> Iterator[list[str]]:
        """Draw lists of this split, each in random order; no two have the same words.

        Args:
            span: the fewest and the most words of a list; all lengths are equally likely.
        """

        def draw() -> tuple[list[str], str]:
            length = self.within(span)
            chosen = self.shuffled(words())[:length]
            return chosen, f"{self.seed} {sorted(chosen)}"

        refusal = (
            f"`--scale` must be smaller: {self.quiz} needs {count} lists of {span[0]} to {span[1]} "
            f"words for {self.split}, but there are only {{}}."
        )
        return each_once(draw, count, SHARES[self.split], refusal)


def swapped(numbers: Sequence[str], places: tuple[int, int]) -> list[str]:
    result = list(numbers)
    first, second = places
    result[first], result[second] = result[second], result[first]
    return result
