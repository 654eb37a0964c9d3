"""The scores of a system in a bin, and how they compare with other systems'."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from fairseq_floater.evaluation.metrics import Array


@dataclass(frozen=True)
class Gain:
    """A score minus the baseline's, and p-values of the paired bootstrap (None without a bootstrap).

    Attributes:
        difference: of the means over seeds.
        p_value: over sentences.
        p_value_holm: corrected for the number of systems that a bin compares with the baseline.
        p_seeds: over sentences and training seeds (a t test if sentences add no variance); None if a
            system has one seed.
        p_seeds_holm: corrected in the same way.
    """

    difference: float
    p_value: float | None
    p_value_holm: float | None = None
    p_seeds: float | None = None
    p_seeds_holm: float | None = None

    def format(self, digits: int) -> str:
        """Return the difference, with the strictest p-value."""
        kinds = (self.p_seeds_holm, self.p_value_holm, self.p_value)
        p_value = next((p for p in kinds if p is not None), None)
        shown = "" if p_value is None else f" ({p_value:.3f})"
        return f"{self.difference:+.{digits}f}{shown}"


@dataclass
class SeedMean:
    """A mean over seeds, the 95 % bootstrap interval of that mean, and the values of the seeds.

    ``resampled`` [R, B]: the values of each run on the same B resamples of sentences. ``seeds`` [R]: the
    names of the seeds. ``gain``: over the baseline, if there is one.
    """

    value: float
    interval: tuple[float, float] | None
    per_seed: list[float]
    resampled: Array = field(repr=False)
    gain: Gain | None = None
    seeds: list[str] = field(default_factory=list)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.per_seed) if len(self.per_seed) > 1 else None

    def to_json_dict(self) -> dict[str, Any]:
        low, high = self.interval or (None, None)
        interval = {"value": self.value, "low": low, "high": high}
        return {**interval, "per_seed": self.per_seed, "spread": self.spread}

    def format(self, digits: int) -> str:
        spread = "" if self.spread is None else f" ±{self.spread:.{digits}f}"
        return f"{self.value:.{digits}f}{spread}"


@dataclass(frozen=True)
class Rank:
    """A rank by loss, and the best and worst rank possible by chance under any common seed."""

    place: int
    best: int
    worst: int

    def __str__(self) -> str:
        return f"{self.place} ({self.best}-{self.worst})"


@dataclass
class BinScore:
    """The scores of a system in a bin; ``loss`` in bits per token, ``cut_off`` a share 0..1.

    ``exact`` is the share of exact matches, if asked for. ``score`` is the mean of another metric's numbers,
    one per sentence, if given.
    """

    bleu: SeedMean
    loss: SeedMean | None
    chrf: float
    length_ratio: float
    cut_off: float | None
    rank: Rank | None = None
    score: SeedMean | None = None
    exact: SeedMean | None = None

    def to_json_dict(self) -> dict[str, Any]:
        names = ("bleu", "loss", "exact_match", "score")
        means = zip(names, (self.bleu, self.loss, self.exact, self.score))
        gains = {name: mean and mean.gain for name, mean in means}
        return {
            "bleu": self.bleu.to_json_dict(),
            "chrf": self.chrf,
            "length_ratio": self.length_ratio,
            "cut_off": self.cut_off,
            "loss_bits_per_token": self.loss and self.loss.to_json_dict(),
            "exact_match": self.exact and self.exact.to_json_dict(),
            "score": self.score and self.score.to_json_dict(),
            **{f"{name}_against_baseline": gain and asdict(gain) for name, gain in gains.items()},
            "rank_by_loss": self.rank and asdict(self.rank),
        }
