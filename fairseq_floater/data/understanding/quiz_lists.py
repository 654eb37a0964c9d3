"""Draw the lists of number words behind the quizzes.

    nine two forty five

A list holds no word twice, so that every question on it has one answer. Every *set* of words
belongs to one split by its hash: no list of another split holds the same words, in this order or another.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar

from fairseq_floater.data.number_words import CorpusError, phrase

T = TypeVar("T")
# One word each, in rising order: whether a list rises is a question of places in this tuple.
NUMBERS = (*range(21), *range(30, 100, 10))
# Which sixteenths of all sets of words belong to which split.
SHARES = {"train": range(12), "dev": range(12, 14), "test": range(14, 16)}
# After so many refused draws in a row a split has run out of sets.
MAX_REFUSED_DRAWS = 20_000


@cache
def words() -> tuple[str, ...]:
    """Return the words of all lists, from zero to ninety."""
    return tuple(phrase(number, "en") for number in NUMBERS)


def rank(word: str) -> int:
    """Return a word's place among all words, from the smallest number to the largest."""
    return words().index(word)


class Draws:
    """Draw lists of one split, and choices for them, as one stream of pseudo-random numbers.

    Only ``Random.random`` is used: Python promises its values from version to version, and not those
    of its other methods.

    Args:
        seed: of all quizzes.
        quiz: a name; each quiz has a stream of its own, so that the size of one changes no other.
        split: a key of :data:`SHARES`.
    """

    def __init__(self, seed: int, quiz: str, split: str) -> None:
        self.seed, self.quiz, self.split = seed, quiz, split
        stream = f"stream {seed} {quiz} {split}".encode()
        self._random = random.Random(
            int.from_bytes(hashlib.blake2b(stream, digest_size=9).digest(), "big")
        )

    def below(self, count: int) -> int:
        """Return a whole number from 0 to ``count - 1``."""
        return int(self._random.random() * count)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return all items in an order at random, each order equally likely."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]

    def places(self, list_length: int) -> tuple[int, int]:
        """Return two places of a list, the smaller first."""
        first, second = self.below(list_length), self.below(list_length - 1)
        second += second >= first
        return min(first, second), max(first, second)

    def lists(self, count: int, span: tuple[int, int]) -> Iterator[list[str]]:
        """Draw lists of this split, each in an order at random and no two of the same words.

        Args:
            count: how many.
            span: the fewest and the most words of a list; all lengths are equally likely.

        Raises:
            CorpusError: there are not so many sets of words.
        """
        drawn: set[int] = set()
        refused = 0
        while len(drawn) < count:
            length = span[0] + self.below(span[1] - span[0] + 1)
            found = self.shuffled(words())[:length]
            digest = hashlib.blake2b(
                f"{self.seed} {sorted(found)}".encode(), digest_size=9
            ).digest()
            key = int.from_bytes(digest[1:], "big")
            if digest[0] % 16 in SHARES[self.split] and key not in drawn:
                drawn.add(key)
                refused = 0
                yield found
                continue
            refused += 1
            if refused == MAX_REFUSED_DRAWS:
                raise CorpusError(
                    f"`--scale` must be smaller: {self.quiz} needs {count} lists of {span[0]} to "
                    f"{span[1]} words for {self.split}, but {len(drawn)} are all there are."
                )


def swapped(found: Sequence[str], places: tuple[int, int]) -> list[str]:
    """Return a list with the words at two places exchanged."""
    result = list(found)
    first, second = places
    result[first], result[second] = result[second], result[first]
    return result
