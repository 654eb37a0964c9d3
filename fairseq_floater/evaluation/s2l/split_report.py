"""Sample the test pairs of a short-to-long split; report what was kept, left out and held out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import ReportError
from fairseq_floater.evaluation.s2l.options import Bins
from fairseq_floater.files import write_text
from fairseq_floater.records import markdown_table, read_json
from fairseq_floater.version import __version__

TEST = "test"
SHORT_TEST = "test_short"
_SHAPE = {
    **dict.fromkeys(("lines", "kept", "left_out", "overlap", "bins", "longest_source"), dict),
    "made_from": {"options": {"source": str, "target": str, "encoded": bool}},
    "tokens_of": str,
    "edges": [int],
}
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


def shares(files: Mapping[str, int]) -> str:
    """Return the share of pairs from each file, as in ``75 % test.en, 25 % train.en``."""
    total = sum(files.values())
    return ", ".join(f"{100 * n / total:.0f} % {name}" for name, n in files.items())


class HeldOut:
    """The test pairs: long pairs in the bins (``test``) and short ones below (``test_short``).

    With a limit, a bin is filled from the test files first, then from valid, then from train: long
    pairs of documents that the model was trained on are easier than those of unseen documents. If
    one kind of file has more pairs than the bin has room for, a random sample of them is kept
    (reservoir sampling). Pairs keep their order.
    """

    def __init__(self, bins: Bins, max_per_bin: int | None, seed: int):
        self.limit, self.random = max_per_bin, random.Random(seed)
        self.bins = bins
        # Bin -1 holds the short pairs of the test files.
        self.kept: dict[int, list[tuple[int, Pair]]] = {i: [] for i in range(-1, len(bins.edges))}
        self.counted = dict.fromkeys(self.kept, 0)
        self.begin_kind()

    def begin_kind(self) -> None:
        """Begin another kind of file; it cannot replace the pairs kept so far."""
        self.settled = {index: len(kept) for index, kept in self.kept.items()}
        self.offered = dict.fromkeys(self.kept, 0)

    def add(self, pair: Pair) -> None:
        index, order = self.bins.index(pair.source_tokens), sum(self.counted.values())
        kept, settled = self.kept[index], self.settled[index]
        self.counted[index] += 1
        self.offered[index] += 1
        if self.limit is None or len(kept) < self.limit:
            kept.append((order, pair))
        elif (slot := settled + self.random.randrange(self.offered[index])) < self.limit:
            kept[slot] = (order, pair)

    def counts(self) -> dict[str, dict[str, Any]]:
        """Return by bin how many pairs were found and kept, and how many were kept from each file."""
        names = [self.bins.short_name, *self.bins.names]
        return {
            name: {
                "found": counted,
                "kept": len(kept),
                "files": dict(Counter(pair.file for _, pair in kept)),
            }
            for name, counted, kept in zip(names, self.counted.values(), self.kept.values())
        }

    def write(self, folder: Path, langs: Sequence[str]) -> None:
        """Write the text of the pairs, and their origins as a table, into ``folder``."""
        names = [*self.bins.names, self.bins.short_name]
        for test, bins in ((TEST, range(len(self.bins.edges))), (SHORT_TEST, [-1])):
            pairs = sorted((order, i, pair) for i in bins for order, pair in self.kept[i])
            if not pairs:
                continue
            table: list[Sequence[object]] = [COLUMNS]
            for number, (_, i, p) in enumerate(pairs):
                table.append((number, names[i], p.source_tokens, p.target_tokens, p.file, p.line))
            rows = ["\t".join(map(str, row)) for row in table]
            sides = [p.source for *_, p in pairs], [p.target for *_, p in pairs], rows
            for side, ending in zip(sides, (*langs, "tsv")):
                write_text(folder / f"{test}.{ending}", "".join(f"{line}\n" for line in side))


@dataclass
class SplitReport:
    """The counts of a split.

    Attributes:
        made_from: options and hashes of the inputs, and the files that were made from them.
        lines: pairs read, by split.
        tokens_of: text that says which tokens were counted.
        kept: number of pairs, and the longest source and target in tokens, of train and of valid.
        left_out: pairs by split and reason.
        held_out: :meth:`HeldOut.counts`.
        overlap: shares 0..1 of the test lines, by side, test set and kind.
        longest: source tokens, file and line of the longest source of all.
    """

    made_from: dict[str, Any]
    lines: dict[str, int]
    bins: Bins
    tokens_of: str
    kept: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    held_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    overlap: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    longest: tuple[int, str, int] = (0, "", 0)

    def __post_init__(self) -> None:
        for kind in ("train", "valid"):
            self.kept.setdefault(kind, {"pairs": 0, "longest_source": 0, "longest_target": 0})

    def see(self, pair: Pair) -> None:
        """Record a pair that is used, if its source is the longest so far."""
        if pair.source_tokens > self.longest[0]:
            self.longest = (pair.source_tokens, pair.file, pair.line)

    def keep(self, kind: str, pair: Pair) -> None:
        counts = self.kept[kind]
        counts["pairs"] += 1
        counts["longest_source"] = max(counts["longest_source"], pair.source_tokens)
        counts["longest_target"] = max(counts["longest_target"], pair.target_tokens)

    def check_bins(self) -> None:
        """Raise TextDataError if a bin is empty."""
        length, file, line = self.longest
        longest = f"the longest source has {length} tokens ({file}, line {line})"
        empty = [name for name in self.bins.names if not self.held_out[name]["found"]]
        if len(empty) == len(self.bins.names):
            raise TextDataError(
                f"No usable pair has a source of {self.bins.threshold} tokens or more: {longest}."
            )
        if empty:
            raise TextDataError(f"The bin {empty[0]} holds no pair: {longest}; choose other edges.")

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "made_from": self.made_from,
            "edges": list(self.bins.edges),
            "length": f"source tokens without the end symbol; tokens of {self.tokens_of}",
            "tokens_of": self.tokens_of,
            "lines": self.lines,
            "kept": self.kept,
            "share_of_train_kept": self.kept["train"]["pairs"] / self.lines["train"],
            "left_out": self.left_out,
            "bins": self.held_out,
            "overlap": self.overlap,
            "longest_source": dict(zip(("tokens", "file", "line"), self.longest)),
            "version": __version__,
        }

    @classmethod
    def read(cls, folder: Path) -> SplitReport:
        """Read the report in ``folder``; raises ReportError if its file has another form."""
        if not (folder / "split.json").is_file():
            raise ReportError(
                f"There is no {folder / 'split.json'}; `floater s2l split` writes it."
            )
        record = read_json(folder / "split.json", _SHAPE)
        names = ("made_from", "lines", "tokens_of", "kept", "left_out", "overlap")
        return cls(
            **{name: record[name] for name in names},
            bins=Bins(tuple(record["edges"])),
            held_out=record["bins"],
            longest=tuple(record["longest_source"].values()),
        )

    def format_text(self) -> str:
        train = self.kept["train"]
        rows = [
            (part, self.bins.short_name, f"{kept['pairs']:,}", f"{self.lines[part]:,} lines")
            for part, kept in self.kept.items()
        ]
        for name, counts in self.held_out.items():
            part = SHORT_TEST if name == self.bins.short_name else TEST
            if counts["found"]:
                origin = shares(counts["files"])
                rows.append((part, name, f"{counts['kept']:,}, {origin}", f"{counts['found']:,}"))
        lines = [
            f"Length is counted in source tokens without the end symbol; tokens of {self.tokens_of}.",
            "",
            *markdown_table(("part", "source tokens", "pairs", "found"), rows),
            "",
            f"{100 * train['pairs'] / self.lines['train']:.1f} % of the training pairs are kept; the "
            f"longest has {train['longest_source']} source tokens, the longest training target "
            f"{train['longest_target']} tokens.",
        ]
        for split, reasons in self.left_out.items():
            counted = ", ".join(f"{n:,} {why}" for why, n in reasons.items())
            lines.append(f"Left out of {split}: {counted}.")
        lines += [
            f"{test}, {side}: {100 * repeated['same_line']:.1f} % of the lines are also in the "
            f"training text, {100 * repeated['any_13gram']:.1f} % share a run of 13 words with "
            f"it, {100 * repeated['half_of_13grams']:.1f} % at least half of their runs."
            for side, tests in self.overlap.items()
            for test, repeated in tests.items()
        ]
        return "\n".join(lines)
