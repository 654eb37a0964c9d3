"""The scores of a system in a bin, and how they compare with other systems'."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import stdev
from typing import Any

import numpy as np

from fairseq_floater.evaluation.metrics import Array
from fairseq_floater.evaluation.s2l import statistics


@dataclass(frozen=True)
class Gain:
    """A score minus the baseline's, and p-values (None without a bootstrap).

    Attributes:
        difference: of the means over seeds.
        p_value: over sentences, of the paired bootstrap.
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
        return stdev(self.per_seed) if len(self.per_seed) > 1 else None

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


def compare(
    scores: Mapping[str, BinScore], baseline: str, seed: int, has_seeds: Container[str]
) -> None:
    """Set each system's gain on a bin's baseline, with p-values corrected for the number of systems.

    Runs are paired by seed only if the seeds of both systems are known (``has_seeds``).
    """
    # The baseline has a gain on itself too, for the record; it does not count as a comparison.
    others = [name for name in scores if name != baseline]
    for attribute in ("bleu", "exact", "loss", "score"):
        means = {name: mean for name in scores if (mean := getattr(scores[name], attribute))}
        if baseline not in means:
            continue
        for name, mean in means.items():
            known = name in has_seeds and baseline in has_seeds
            mean.gain = _gain(mean, means[baseline], seed, known)
        compared = [means[name] for name in others if name in means]
        # A variant of decoding (`rope.told_length`) may share its system's loss.
        count = sum(n in means or n.rpartition(".")[0] not in scores for n in others)
        for kind in ("p_value", "p_seeds"):
            tested = [mean for mean in compared if getattr(mean.gain, kind) is not None]
            p_values = [getattr(mean.gain, kind) for mean in tested]
            for mean, p_value in zip(tested, statistics.holm(p_values, count)):
                mean.gain = replace(mean.gain, **{f"{kind}_holm": p_value})


def _gain(ours: SeedMean, base: SeedMean, seed: int, has_seeds: bool) -> Gain:
    difference = ours.value - base.value
    if not base.resampled.size:
        return Gain(difference, None)
    of_sentences = ours.resampled.mean(axis=0) - base.resampled.mean(axis=0)
    by_seed = [mean.resampled[np.argsort(mean.seeds, kind="stable")] for mean in (ours, base)]
    paired = has_seeds and sorted(ours.seeds) == sorted(base.seeds)
    with_seeds = statistics.difference_noise(by_seed[0], by_seed[1], seed, paired=paired)
    return Gain(
        difference,
        statistics.p_value(difference, of_sentences - of_sentences.mean()),
        p_seeds=None if with_seeds is None else statistics.p_value(difference, with_seeds),
    )


def rank(scores: Mapping[str, BinScore]) -> None:
    """Rank the systems of a bin by loss, with the ranks possible by chance under any common seed."""
    losses = {name: score.loss for name, score in scores.items() if score.loss is not None}
    if not losses or not next(iter(losses.values())).resampled.size:
        return
    values = [measure.value for measure in losses.values()]
    common = set.intersection(*(set(measure.seeds) for measure in losses.values()))
    runs = [
        [
            (m.per_seed[m.seeds.index(seed)], m.resampled[m.seeds.index(seed)])
            for m in losses.values()
        ]
        for seed in sorted(common)
    ]
    # Without a common seed, take the means over seeds.
    runs = runs or [[(m.value, m.resampled.mean(axis=0)) for m in losses.values()]]
    ranges = [statistics.rank_ranges(*zip(*of_seed)) for of_seed in runs]
    for name, value, of_seeds in zip(losses, values, zip(*ranges)):
        place = 1 + sum(other < value for other in values)
        best, worst = zip(*of_seeds)
        scores[name].rank = Rank(place, min(place, *best), max(place, *worst))
