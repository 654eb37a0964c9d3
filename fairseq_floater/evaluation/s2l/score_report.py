"""Report scores per bin, for people (Markdown) and as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from fairseq_floater.evaluation.metrics import Array
from fairseq_floater.version import __version__


@dataclass
class Measure:
    """A mean over seeds, the 95 % bootstrap interval of that mean, and the values of the seeds."""

    value: float
    low: float | None
    high: float | None
    per_seed: list[float]
    resampled: Array = field(repr=False)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.per_seed) if len(self.per_seed) > 1 else None

    def to_json_dict(self) -> dict[str, Any]:
        keys = ("value", "low", "high", "per_seed", "spread")
        return {key: getattr(self, key) for key in keys}

    def format(self, digits: int) -> str:
        text = f"{self.value:.{digits}f}"
        if self.spread is not None:
            text += f" ±{self.spread:.{digits}f}"
        return text


@dataclass(frozen=True)
class Comparison:
    """A score minus the baseline's, and the p-value of the paired bootstrap (None without one)."""

    difference: float
    p_value: float | None

    def format(self, digits: int) -> str:
        text = f"{self.difference:+.{digits}f}"
        return text if self.p_value is None else f"{text} ({self.p_value:.3f})"


@dataclass
class BinScore:
    """The scores of a system in a bin; ``loss`` in bits a token, ``cut_off`` a share 0..1."""

    bleu: Measure
    loss: Measure | None
    chrf: float
    length_ratio: float
    cut_off: float | None
    bleu_gain: Comparison | None = None
    loss_gain: Comparison | None = None

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "bleu": self.bleu.to_json_dict(),
            "chrf": self.chrf,
            "length_ratio": self.length_ratio,
            "cut_off": self.cut_off,
            "loss_bits_per_token": self.loss and self.loss.to_json_dict(),
            "bleu_against_baseline": self.bleu_gain and vars(self.bleu_gain),
            "loss_against_baseline": self.loss_gain and vars(self.loss_gain),
        }


@dataclass
class S2LScores:
    """Scores of all systems by bin, the trained lengths first (where given) and ``all`` last."""

    split: str
    labels: dict[str, str]  # by the name of the system
    baseline: str | None
    signature: str
    length: str
    resamples: int
    seed: int
    length_limit: tuple[float, float] | None
    sentences: dict[str, int] = field(default_factory=dict)
    mean_length: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, BinScore]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add_bin(self, name: str, sentences: int, mean_length: float) -> None:
        self.sentences[name] = sentences
        self.mean_length[name] = mean_length
        self.scores[name] = {}

    @property
    def systems(self) -> list[str]:
        return list(self.labels)

    @property
    def bins(self) -> list[str]:
        return list(self.scores)

    def to_json_dict(self) -> dict[str, Any]:
        bins = {
            name: {
                "sentences": self.sentences[name],
                "mean_source_tokens": self.mean_length[name],
                "systems": {s: found.to_json_dict() for s, found in scores.items()},
            }
            for name, scores in self.scores.items()
        }
        keys = (
            "split",
            "systems",
            "labels",
            "baseline",
            "signature",
            "length",
            "resamples",
            "seed",
        )
        return {
            **{key: getattr(self, key) for key in keys},
            "length_limit": self.length_limit and dict(zip("ab", self.length_limit)),
            "bins": bins,
            "warnings": self.warnings,
            "version": __version__,
        }

    def format_text(self) -> str:
        """Return a table for each bin, narrow enough for a terminal; the JSON holds the rest."""
        has_loss = any(f.loss for scores in self.scores.values() for f in scores.values())
        gain = ["against (p)"] if self.baseline else []
        heads = ["system", "BLEU", *gain, *(["loss", *gain] if has_loss else []), "ratio"]
        rows = {
            name: [self._cells(system, found, has_loss) for system, found in scores.items()]
            for name, scores in self.scores.items()
        }
        every_row = [heads, *(row for bin_rows in rows.values() for row in bin_rows)]
        widths = [max(map(len, column)) for column in zip(*every_row)]

        def line(cells: list[str]) -> str:
            return f"| {' | '.join(c.ljust(width) for c, width in zip(cells, widths))} |"

        lines = []
        for name, bin_rows in rows.items():
            sentences, mean = self.sentences[name], self.mean_length[name]
            lines += [f"{name}: {sentences:,} sentences of {mean:.1f} source tokens on average", ""]
            lines += [
                line(heads),
                line(["-" * width for width in widths]),
                *map(line, bin_rows),
                "",
            ]
        return "\n".join([*lines, *self._notes()])

    def _cells(self, system: str, found: BinScore, has_loss: bool) -> list[str]:
        cells = [self.labels[system]]
        kinds = [(found.bleu, found.bleu_gain, 1), (found.loss, found.loss_gain, 2)]
        for value, gain, digits in kinds if has_loss else kinds[:1]:
            cells.append(value.format(digits) if value else "-")
            if system == self.baseline:
                cells.append("")
            elif self.baseline:
                cells.append(gain.format(digits) if gain else "-")
        return [*cells, f"{found.length_ratio:.2f}"]

    def _notes(self) -> list[str]:
        seeds = max(
            len(f.bleu.per_seed) for scores in self.scores.values() for f in scores.values()
        )
        notes = [f"Lengths are counted in {self.length}."]
        if seeds > 1:
            notes.append(f"Means over up to {seeds} training seeds, ± their standard deviation.")
        if self.baseline:
            notes.append(f"against: the difference from {self.labels[self.baseline]}.")
        if self.resamples:
            notes.append(
                f"p, and the 95 % intervals in the JSON: {self.resamples} bootstrap resamples of sentences, "
                f"seed {self.seed}, the same for every system; with several seeds, of their mean."
            )
            notes.append(
                "p is two-sided: two to three times what sacreBLEU's paired bootstrap gives."
            )
        notes.append("loss: bits a token. ratio: hypothesis / reference in BLEU's tokens.")
        if self.length_limit:
            a, b = self.length_limit
            notes.append(
                f"cut_off in the JSON: hypotheses that reached the limit of {a:g} x source + {b:g}."
            )
        notes.append(f"BLEU: {self.signature}")
        return notes + [f"Warning: {warning}" for warning in self.warnings]
