"""Draw the test pairs of a short-to-long split, and record where each came from."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fairseq_floater.evaluation.lines import TextFile
from fairseq_floater.evaluation.s2l.bins import Bins, S2LError

TEST = "test"
SHORT_TEST = "test_short"
_LARGEST_NUMBER = 2**31 - 1
COLUMNS = ("id", "bin", "source_tokens", "target_tokens", "file", "line")


@dataclass(frozen=True)
class Pair:
    """A sentence pair, its lengths in tokens, and its origin (line numbers count from 1)."""

    source: str
    target: str
    source_tokens: int
    target_tokens: int
    file: str
    line: int


@dataclass(frozen=True)
class Origin:
    """A row of test.tsv: the lengths and the origin of a test pair."""

    bin: str
    source_tokens: int
    target_tokens: int
    file: str
    line: int


class HeldOut:
    """Writes test pairs and their origins: ``test`` (the bins) and ``test_short`` (below them).

    Without a limit every pair goes to its files at once. With one, an even sample of each bin is kept
    (reservoir sampling) and written by :meth:`close`, in the order in which the pairs came.

    Args:
        folder: where the files go.
        langs: source and target language.
        bins: of source length.
        max_per_bin: the limit; None for none.
        seed: of the sample.
    """

    def __init__(
        self, folder: Path, langs: Sequence[str], bins: Bins, max_per_bin: int | None, seed: int
    ):
        self.folder, self.langs, self.bins, self.limit = folder, langs, bins, max_per_bin
        self.random = random.Random(seed)
        self.files: dict[str, list[TextIO]] = {}
        self.written: Counter[str] = Counter()
        # Bin -1 holds the short pairs of the test files.
        self.sample: dict[int, list[tuple[int, Pair]]] = {i: [] for i in range(-1, len(bins.edges))}
        self.offered = dict.fromkeys(self.sample, 0)

    def add(self, pair: Pair) -> None:
        index = self.bins.index(pair.source_tokens)
        order = sum(self.offered.values())
        count = self.offered[index] = self.offered[index] + 1
        kept = self.sample[index]
        if self.limit is None:
            self._write(index, pair)
        elif len(kept) < self.limit:
            kept.append((order, pair))
        elif (place := self.random.randrange(count)) < self.limit:
            kept[place] = (order, pair)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many pairs were found and kept for each bin."""
        most = self.limit or max(self.offered.values())
        return {
            self._name(i): {"found": found, "kept": min(found, most)}
            for i, found in self.offered.items()
        }

    def close(self) -> None:
        """Write the sample, if there is one, and close the files."""
        chosen = [(order, i, pair) for i, pairs in self.sample.items() for order, pair in pairs]
        for _, index, pair in sorted(chosen, key=lambda c: c[0]):
            self._write(index, pair)
        for file in itertools.chain.from_iterable(self.files.values()):
            file.close()

    def _write(self, index: int, pair: Pair) -> None:
        name = SHORT_TEST if index < 0 else TEST
        if name not in self.files:
            paths = [self.folder / f"{name}.{ending}" for ending in (*self.langs, "tsv")]
            self.files[name] = [path.open("w", encoding="utf-8", newline="\n") for path in paths]
            self.files[name][2].write("\t".join(COLUMNS) + "\n")
        lengths = (pair.source_tokens, pair.target_tokens)
        row = (self.written[name], self._name(index), *lengths, pair.file, pair.line)
        self.written[name] += 1
        for file, text in zip(
            self.files[name], (pair.source, pair.target, "\t".join(map(str, row)))
        ):
            file.write(text + "\n")

    def _name(self, index: int) -> str:
        return self.bins.short_name if index < 0 else self.bins.names[index]


def read_origins(path: Path) -> Iterator[Origin]:
    """Yield the rows of a table that :class:`HeldOut` wrote.

    Raises:
        ScoringError: it cannot be read.
        S2LError: a row is damaged; names the line.
    """
    count = 0
    for number, line in enumerate(TextFile(path).lines, start=1):
        if number == 1 or not line:
            continue
        try:
            index, name, source, target, file, origin = line.split("\t")
            row = Origin(name, int(source), int(target), file, int(origin))
            numbers = (row.source_tokens, row.target_tokens, row.line)
            if int(index) != count or not all(0 <= n <= _LARGEST_NUMBER for n in numbers):
                raise ValueError
        except ValueError:
            raise S2LError(
                f"{path}, line {number} is no row of {', '.join(COLUMNS)} with the id {count}."
            ) from None
        yield row
        count += 1
