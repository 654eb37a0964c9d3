"""Bootstrap scores that are functions of sums over sentences.

Summed over the sentences of a bin, counts give the bin's score; over all bins, exactly the score of
the corpus. Every system is scored on the same resamples, so that differences are paired (Koehn, 2004).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_floater.evaluation.metrics import Array, Score

# How many resamples to weigh at once, and how many weights to hold for them.
_CHUNK = 100
_MOST_WEIGHTS = 1 << 22


def bits_per_token(sums: Array) -> float:
    """Return the loss per token of summed (bits, tokens)."""
    return float(sums[0] / sums[1]) if sums[1] else float("nan")


class Bootstrap:
    """The same resamples of N sentences for every system.

    Args:
        sentences: N.
        resamples: how many; 0 for none.
        seed: of the resampling.
    """

    def __init__(self, sentences: int, resamples: int, seed: int):
        self.sentences, self.resamples, self.seed = sentences, resamples, seed

    def scores(self, runs: Sequence[Array], score: Score) -> Array:
        """Score every resample, averaged over runs (seeds) of counts [N, K] each: [resamples]."""
        if not self.resamples:
            return np.empty(0)
        generator = np.random.default_rng(self.seed)
        shares = np.full(self.sentences, 1 / self.sentences)
        found = []
        chunk = max(1, min(_CHUNK, _MOST_WEIGHTS // self.sentences))
        for start in range(0, self.resamples, chunk):
            size = min(chunk, self.resamples - start)
            # Draw N times with replacement: a weight says how often a sentence is drawn.
            weights = generator.multinomial(self.sentences, shares, size=size)
            per_run = [[score(sums) for sums in weights @ statistics] for statistics in runs]
            found.append(np.mean(per_run, axis=0))
        return np.concatenate(found)


def interval(resampled: Array) -> tuple[float, float] | tuple[None, None]:
    """Return the bounds of the central 95 % of the resamples; None without any."""
    if not len(resampled):
        return None, None
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)


def paired_p_value(difference: float, resampled: Array) -> float | None:
    """Return the chance of a difference as large, either way, if there were none.

    It is 1 for a system against itself. ``resampled`` are the differences on the same resamples; their
    spread around their own mean stands for chance, on both sides of it. sacreBLEU's paired bootstrap
    takes the differences without their signs and counts one side: its p-values are a half to a third
    of these.
    """
    if not len(resampled):
        return None
    by_chance = np.abs(resampled - resampled.mean())
    return float((np.sum(by_chance >= abs(difference)) + 1) / (len(resampled) + 1))
