"""Scores per bin, for people (Markdown) and as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from fairseq_floater.metric_sums import Array
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
        """Standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.per_seed) if len(self.per_seed) > 1 else None

    def to_json_dict(self) -> dict[str, Any]:
        keys = ("value", "low", "high", "per_seed", "spread")
        return {key: getattr(self, key) for key in keys}

    def format(self, digits: int) -> str:
        text = f"{self.value:.{digits}f}"
        if self.low is not None:
            text += f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        if self.spread is not None:
            text += f" ±{self.spread:.{digits}f}"
        return text


@dataclass(frozen=True)
class Comparison:
    """Ours minus the baseline's, and the p-value of the paired bootstrap (None without one)."""

    difference: float
    p_value: float | None

    def format(self, digits: int) -> str:
        text = f"{self.difference:+.{digits}f}"
        return text if self.p_value is None else f"{text} (p={self.p_value:.3f})"


@dataclass
class BinScore:
    """One system in one bin; ``loss`` in bits a token, ``cut_off`` a share 0..1."""

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
    systems: list[str]
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
        keys = ("split", "systems", "baseline", "signature", "length", "resamples", "seed")
        return {
            **{key: getattr(self, key) for key in keys},
            "length_limit": self.length_limit and dict(zip("ab", self.length_limit)),
            "bins": bins,
            "warnings": self.warnings,
            "version": __version__,
        }

    def format_text(self) -> str:
        has_loss = any(f.loss for scores in self.scores.values() for f in scores.values())
        has_limit = any(
            f.cut_off is not None for scores in self.scores.values() for f in scores.values()
        )
        heads = ["source tokens", "sentences", "mean length", "system", "BLEU", "chrF", "length"]
        heads += ["cut off"] if has_limit else []
        heads += ["loss, bits a token"] if has_loss else []
        if self.baseline:
            heads.append(f"BLEU against {self.baseline}")
            heads += [f"loss against {self.baseline}"] if has_loss else []
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for name, scores in self.scores.items():
            for number, (system, found) in enumerate(scores.items()):
                place = ["", "", ""]
                if number == 0:
                    place = [name, f"{self.sentences[name]:,}", f"{self.mean_length[name]:.1f}"]
                cells = [*place, system, found.bleu.format(1), f"{found.chrf:.1f}"]
                cells.append(f"{found.length_ratio:.2f}")
                if has_limit:
                    cells.append("-" if found.cut_off is None else f"{100 * found.cut_off:.0f} %")
                if has_loss:
                    cells.append(found.loss.format(2) if found.loss else "-")
                if self.baseline:
                    cells += self._gains(system, found, has_loss)
                lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, "", *self._notes()])

    def _gains(self, system: str, found: BinScore, has_loss: bool) -> list[str]:
        gains = [(found.bleu_gain, 1), *([(found.loss_gain, 2)] if has_loss else [])]
        if system == self.baseline:
            return ["" for _ in gains]
        return [gain.format(digits) if gain else "-" for gain, digits in gains]

    def _notes(self) -> list[str]:
        seeds = max(
            len(f.bleu.per_seed) for scores in self.scores.values() for f in scores.values()
        )
        notes = [f"Length is counted in {self.length}."]
        if self.resamples:
            notes.append(
                f"[95 % interval] and p: {self.resamples} bootstrap resamples of sentences, seed "
                f"{self.seed}, the same for every system."
            )
        if seeds > 1:
            notes.append(
                f"Means over up to {seeds} training seeds, ± their standard deviation; intervals and p "
                "are those of the mean on resampled sentences."
            )
        notes.append("length: hypothesis / reference in BLEU's tokens.")
        if self.length_limit:
            a, b = self.length_limit
            notes.append(f"cut off: hypotheses that reached the limit of {a:g} x source + {b:g}.")
        notes.append(f"BLEU: {self.signature}")
        return notes + [f"Warning: {warning}" for warning in self.warnings]
