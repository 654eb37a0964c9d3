"""Count what a short-to-long split kept, left out and held out, for people and as split.json."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_floater.errors import shown
from fairseq_floater.evaluation.s2l.bins import Bins, S2LError
from fairseq_floater.evaluation.s2l.held_out import SHORT_TEST, TEST, Pair
from fairseq_floater.records import read_json
from fairseq_floater.version import __version__


@dataclass
class SplitReport:
    """The counts of a split.

    Attributes:
        made_from: options and hashes of the inputs.
        lines: pairs read, by file.
        tokens_of: whose tokens were counted.
        kept: pairs, and the longest source and target in tokens, of train and of valid.
        left_out: pairs by file and reason.
        held_out: pairs found and kept, by bin.
        overlap: shares 0..1 of the test lines, by side, test set and kind.
        longest: source tokens, file and line of the longest source of all.
    """

    made_from: dict[str, Any]
    lines: dict[str, int]
    bins: Bins
    tokens_of: str
    kept: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    held_out: dict[str, dict[str, int]] = field(default_factory=dict)
    overlap: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    longest: tuple[int, str, int] = (0, "", 0)

    def __post_init__(self) -> None:
        for kind in ("train", "valid"):
            self.kept.setdefault(kind, {"pairs": 0, "longest_source": 0, "longest_target": 0})

    def see(self, pair: Pair) -> None:
        if pair.source_tokens > self.longest[0]:
            self.longest = (pair.source_tokens, pair.file, pair.line)

    def keep(self, kind: str, pair: Pair) -> None:
        counts = self.kept[kind]
        counts["pairs"] += 1
        counts["longest_source"] = max(counts["longest_source"], pair.source_tokens)
        counts["longest_target"] = max(counts["longest_target"], pair.target_tokens)

    def leave_out(self, split: str, why: str) -> None:
        self.left_out.setdefault(split, Counter())[why] += 1

    def check_bins(self, held_out: dict[str, dict[str, int]]) -> None:
        """Take the counts of the bins; raise S2LError where one of them is empty."""
        self.held_out = held_out
        length, file, line = self.longest
        longest = f"the longest source has {length} tokens ({file}, line {line})"
        if not any(held_out[name]["found"] for name in self.bins.names):
            raise S2LError(
                f"No pair that can be used has a source of {self.bins.threshold} tokens or more: "
                f"{longest}."
            )
        for name in self.bins.names:
            if not held_out[name]["found"]:
                raise S2LError(f"The bin {name} holds no pair: {longest}; choose other `--edges`.")

    def to_json_dict(self) -> dict[str, Any]:
        train = self.kept["train"]
        return {
            "made_from": self.made_from,
            "edges": list(self.bins.edges),
            "length": f"source tokens without the end symbol; tokens of {self.tokens_of}",
            "tokens_of": self.tokens_of,
            "lines": self.lines,
            "kept": self.kept,
            "share_of_train_kept": train["pairs"] / self.lines["train"],
            "left_out": {split: dict(counts) for split, counts in self.left_out.items()},
            "bins": self.held_out,
            "overlap": self.overlap,
            "longest_source": dict(zip(("tokens", "file", "line"), self.longest)),
            "version": __version__,
        }

    @classmethod
    def read(cls, folder: Path) -> SplitReport:
        """Return the report in ``folder``; raise S2LError where there is none."""
        path = folder / "split.json"
        try:
            found = read_json(path)
            report = cls(
                made_from=found["made_from"],
                lines=found["lines"],
                bins=Bins(tuple(found["edges"])),
                tokens_of=found["tokens_of"],
                kept=found["kept"],
                left_out={split: Counter(c) for split, c in found["left_out"].items()},
                held_out=found["bins"],
                overlap=found["overlap"],
                longest=tuple(found["longest_source"].values()),
            )
            _check_options(report.made_from["options"])
            report.format_text()  # a report that cannot be shown was not written here
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ArithmeticError,
        ) as error:
            raise S2LError(
                f"{path} is not what `floater s2l split` writes: {type(error).__name__} {error}."
            ) from None
        return report

    def format_text(self) -> str:
        train, valid = self.kept["train"], self.kept["valid"]
        share = 100 * train["pairs"] / self.lines["train"]
        lines = [
            f"Length is counted in source tokens without the end symbol; tokens of {self.tokens_of}.",
            "",
            "| part | source tokens | pairs | found |",
            "|---|---|---|---|",
            f"| train | {self.bins.short_name} | {train['pairs']:,} | {self.lines['train']:,} lines |",
            f"| valid | {self.bins.short_name} | {valid['pairs']:,} | {self.lines['valid']:,} lines |",
        ]
        for name, counts in self.held_out.items():
            part = SHORT_TEST if name == self.bins.short_name else TEST
            if part == TEST or counts["found"]:
                lines.append(f"| {part} | {name} | {counts['kept']:,} | {counts['found']:,} |")
        lines += [
            "",
            f"{share:.1f} % of the training pairs are kept; the longest has "
            f"{train['longest_source']} source tokens, the longest training target "
            f"{train['longest_target']} tokens.",
        ]
        for split, counts in self.left_out.items():
            reasons = ", ".join(f"{n:,} {why}" for why, n in counts.items())
            lines.append(f"Left out of {split}: {reasons}.")
        for side, tests in self.overlap.items():
            for test, shares in tests.items():
                lines.append(
                    f"{test}, {side}: {100 * shares['same_line']:.1f} % of the lines stand in the "
                    f"training text, {100 * shares['any_13gram']:.1f} % share 13 words in a row with "
                    f"it, {100 * shares['half_of_13grams']:.1f} % at least half of theirs."
                )
        return "\n".join(lines)


def _check_options(options: dict[str, Any]) -> None:
    """Check what scoring takes from a record; its languages become parts of paths."""
    for side in ("source", "target"):
        if not re.fullmatch(r"\w+", options[side], re.ASCII):
            raise ValueError(f"`{side}` is {shown(options[side])}")
    if not isinstance(options["encoded"], bool):
        raise ValueError(f"`encoded` is {shown(options['encoded'])}")
