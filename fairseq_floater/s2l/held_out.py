"""The test pairs of a short-to-long split: drawing them, and where each came from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.checkpoints import write_text
from fairseq_floater.s2l.bins import Bins, S2LError

TEST = "test"
SHORT_TEST = "test_short"
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
    """A row of test.tsv: what is known of a test pair besides its text."""

    bin: str
    source_tokens: int
    target_tokens: int
    file: str
    line: int


class HeldOut:
    """Collects test pairs by bin; with a limit, an even sample of each bin (reservoir sampling)."""

    def __init__(self, bins: Bins, max_per_bin: int | None, seed: int):
        self.bins = bins
        self.limit = max_per_bin
        self.random = random.Random(seed)
        # Bin -1 holds the short pairs of the test files.
        self.pairs: dict[int, list[tuple[int, Pair]]] = {i: [] for i in range(-1, len(bins.edges))}
        self.offered = dict.fromkeys(self.pairs, 0)

    def add(self, pair: Pair) -> None:
        index = self.bins.index(pair.source_tokens)
        order = sum(self.offered.values())
        count = self.offered[index] = self.offered[index] + 1
        kept = self.pairs[index]
        if self.limit is None or len(kept) < self.limit:
            kept.append((order, pair))
            return
        place = self.random.randrange(count)
        if place < self.limit:
            kept[place] = (order, pair)

    def counts(self) -> dict[str, dict[str, int]]:
        """Pairs found and pairs kept for each bin."""
        return {
            self._name(i): {"found": self.offered[i], "kept": len(pairs)}
            for i, pairs in self.pairs.items()
        }

    def write(self, folder: Path, name: str, langs: Sequence[str]) -> None:
        """Write the text of a test set and its table of origins; nothing where it has no pairs."""
        indices = [i for i in self.pairs if (i < 0) == (name == SHORT_TEST)]
        chosen = sorted(((o, i, p) for i in indices for o, p in self.pairs[i]), key=lambda c: c[0])
        if not chosen:
            return
        pairs = [pair for _, _, pair in chosen]
        for lang, lines in zip(langs, ([p.source for p in pairs], [p.target for p in pairs])):
            write_text(folder / f"{name}.{lang}", "".join(line + "\n" for line in lines))
        rows: list[tuple[Any, ...]] = [COLUMNS]
        for number, (_, i, p) in enumerate(chosen):
            rows.append((number, self._name(i), p.source_tokens, p.target_tokens, p.file, p.line))
        write_text(folder / f"{name}.tsv", "".join("\t".join(map(str, row)) + "\n" for row in rows))

    def _name(self, index: int) -> str:
        return self.bins.short_name if index < 0 else self.bins.names[index]


def read_origins(path: Path) -> list[Origin]:
    """The rows of a table that :meth:`HeldOut.write` wrote.

    Raises:
        S2LError: missing or damaged; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise S2LError(f"{path} cannot be read: {error.strerror}.") from None
    rows: list[Origin] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        cells = line.split("\t")
        try:
            index, name, source, target, file, origin = cells
            if int(index) != len(rows):
                raise ValueError
            rows.append(Origin(name, int(source), int(target), file, int(origin)))
        except ValueError:
            raise S2LError(
                f"{path}, line {number} is no row of {', '.join(COLUMNS)} with the id {len(rows)}."
            ) from None
    return rows
