"""Estimate how much of a difference between systems is chance, by sentences and training seeds.

Letters: S systems, R runs (seeds) of a system, N sentences, K counts of a sentence, B resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from fairseq_floater.evaluation.metrics import Array, Score

LEVEL = 0.05  # chance that any pair of equal systems in a bin is told apart
# The most resamples, and the most weights for them, in memory at once; the most weights that are kept.
_CHUNK = 100
_MOST_WEIGHTS = 1 << 22
_MOST_KEPT = 1 << 24


def bootstrap_scores(runs: Sequence[Array], score: Score, resamples: int, seed: int) -> Array:
    """Score bootstrap resamples of N sentences; the same N and seed give the same resamples.

    Returns:
        [R, B]: the scores of each run.
    """
    sentences = len(runs[0])
    runs = [counts.astype(np.float64) for counts in runs]
    draw = _kept_weights if sentences * resamples <= _MOST_KEPT else _weights
    scores = [np.empty((len(runs), 0))]
    for drawn in draw(sentences, resamples, seed):
        # As floats, because numpy multiplies matrices of integers without BLAS. Sums of counts stay exact.
        weights = drawn.astype(np.float64)
        scores.append(np.array([[score(sums) for sums in weights @ counts] for counts in runs]))
    return np.concatenate(scores, axis=1)


def _weights(sentences: int, resamples: int, seed: int) -> Iterator[Array]:
    """Draw N times with replacement, for some resamples at a time: how often each sentence is drawn."""
    generator = np.random.default_rng(seed)
    shares = np.full(sentences, 1 / sentences)
    chunk = max(1, min(_CHUNK, _MOST_WEIGHTS // sentences))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        yield generator.multinomial(sentences, shares, size=size).astype(np.int32)


@lru_cache(maxsize=1)
def _kept_weights(sentences: int, resamples: int, seed: int) -> list[Array]:
    """Keep the weights of a group of sentences: drawing them takes longer than scoring a system."""
    return [*_weights(sentences, resamples, seed)]


def difference_noise(ours: Array, base: Array, seed: int, *, paired: bool = True) -> Array | None:
    """Draw the noise [B] in the difference between the means over runs of two systems, [R, B] each.

    Each draw adds two kinds of noise: a resample of sentences, and a draw for training seeds. The variance
    between seeds is estimated from few runs, so that draw follows Student's distribution, with Welch's
    degrees of freedom. Without noise from sentences, :func:`p_value` gives the p-value of a t test.
    (Satterthwaite's formula for both variances together is too optimistic: 2 % of null differences get a p
    below 0.0025.) With ``paired``, row k of both systems has one seed, and three rows or more are compared
    pair by pair; two would leave one degree of freedom.

    Returns:
        None if a system has one run, which says nothing about seeds.
    """
    if min(len(ours), len(base)) < 2:
        return None
    parts = [ours - base] if paired and len(ours) == len(base) > 2 else [ours, base]
    variances = np.array([part.mean(axis=1).var(ddof=1) / len(part) for part in parts])
    noise: Array = ours.mean(axis=0) - base.mean(axis=0)
    noise -= noise.mean()
    if squares := (variances**2 / [len(part) - 1 for part in parts]).sum():
        freedom = min(variances.sum() ** 2 / squares, 1e9)
        draws = np.random.default_rng(seed).standard_t(freedom, len(noise))
        noise += draws * np.sqrt(variances.sum())
    return noise


def p_value(difference: float, noise: Array) -> float:
    """Return the two-sided p-value of a difference under the null hypothesis of none.

    Args:
        difference: of two systems; a system against itself has p = 1.
        noise: [B] draws of a difference by chance. For the paired bootstrap over sentences: the
            differences on resamples minus their mean. sacreBLEU drops the signs of differences and
            counts one side, so its p-values are a half to a third of these.
    """
    return float((np.sum(np.abs(noise) >= abs(difference)) + 1) / (len(noise) + 1))


def holm(p_values: Sequence[float], comparisons: int) -> list[float]:
    """Correct p-values for the number of comparisons (Holm 1979), keeping their order.

    If all differences with p below a level are called real, the chance of any false call is below it.
    If fewer p-values than ``comparisons`` are known, the others count as if they were larger.
    """
    order = np.argsort(p_values, kind="stable")
    counts = comparisons - np.arange(len(order))
    corrected = np.maximum.accumulate(counts * np.asarray(p_values, dtype=np.float64)[order])
    in_order = np.empty(len(order))
    in_order[order] = np.minimum(corrected, 1)
    return [float(p) for p in in_order]


def rank_ranges(values: Sequence[float], resampled: Sequence[Array]) -> list[tuple[int, int]]:
    """Return the best and the worst rank of each of S systems; rank 1 is the lowest value.

    Each difference is divided by its standard error. Two systems differ if theirs is larger than the
    largest difference of any pair in 95 % of the resamples, where chance alone makes differences (Tukey's
    range test, by bootstrap).

    Args:
        values: [S] scores.
        resampled: [S, B] scores on the same resamples of sentences.
    """
    scores, chance = np.asarray(values), np.stack(resampled)
    chance = chance - chance.mean(axis=1, keepdims=True)
    largest = np.zeros(chance.shape[1])
    distances = np.zeros((len(scores), len(scores)))  # i minus j in standard errors
    for i in range(len(scores)):
        differences = chance[i] - chance[i + 1 :]
        errors = differences.std(axis=1, keepdims=True)
        errors[errors == 0] = np.inf  # a system and itself
        largest = np.maximum(largest, np.abs(differences / errors).max(axis=0, initial=0))
        distances[i, i + 1 :] = (scores[i] - scores[i + 1 :]) / errors[:, 0]
    distances -= distances.T
    is_better = distances < -np.quantile(largest, 1 - LEVEL)
    best, worst = 1 + is_better.sum(axis=0), len(scores) - is_better.sum(axis=1)
    return [(int(b), int(w)) for b, w in zip(best, worst)]
