"""Resample sentences and training seeds: what of a difference between systems is chance.

Letters: S systems, R runs (seeds) of a system, N sentences, K counts of a sentence, B resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairseq_floater.evaluation.metrics import Array, Score

LEVEL = 0.05  # chance of any pair of systems of a bin being told apart that is not different
# How many resamples to weigh at once, and how many weights to hold for them.
_CHUNK = 100
_MOST_WEIGHTS = 1 << 22


def bootstrap_scores(runs: Sequence[Array], score: Score, resamples: int, seed: int) -> Array:
    """Score resamples of N sentences, the same ones whenever N and the seed are the same.

    Args:
        runs: counts [N, K] of each run (seed) of a system.
        score: turns counts summed over sentences [K] into a score.
        resamples: how many; 0 for none.
        seed: of the resampling.

    Returns:
        [R, B]: the scores of each run.
    """
    sentences = len(runs[0])
    generator = np.random.default_rng(seed)
    shares = np.full(sentences, 1 / sentences)
    found = [np.empty((len(runs), 0))]
    chunk = max(1, min(_CHUNK, _MOST_WEIGHTS // sentences))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        # Draw N times with replacement: a weight says how often a sentence is drawn.
        weights = generator.multinomial(sentences, shares, size=size)
        found.append(np.array([[score(sums) for sums in weights @ counts] for counts in runs]))
    return np.concatenate(found, axis=1)


def over_seeds(per_run: Array, seed: int) -> Array | None:
    """Average resampled scores [R, B] over runs that are resampled too: [B]; None for one run.

    Run r of every system is drawn together, as runs of one seed see the same batches. The spread of so few
    runs around their own mean is too small by sqrt((R - 1) / R), which is made up for.
    """
    runs = len(per_run)
    if runs < 2:
        return None
    drawn = np.random.default_rng(seed).integers(runs, size=per_run.shape)
    mean: Array = per_run.mean(axis=0)
    resampled = np.take_along_axis(per_run, drawn, axis=0).mean(axis=0)
    return mean + math.sqrt(runs / (runs - 1)) * (resampled - mean)


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


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979), in their order.

    Rejecting all below a level, the chance that any of them is wrong stays below it.
    """
    order = np.argsort(p_values, kind="stable")
    counts = np.arange(len(order), 0, -1)
    corrected = np.maximum.accumulate(counts * np.asarray(p_values, dtype=np.float64)[order])
    found = np.empty(len(order))
    found[order] = np.minimum(corrected, 1)
    return [float(p) for p in found]


def places(values: Sequence[float], resampled: Sequence[Array]) -> list[tuple[int, int]]:
    """Return the best and the worst place of each of S systems, 1 for the lowest value.

    Two systems are told apart where their difference, in its own standard errors, is larger than the
    largest of all pairs is by chance in 95 % of the resamples (Tukey's range test, by bootstrap): of all
    pairs of systems that do not differ, not one is told apart with that chance.

    Args:
        values: [S] scores.
        resampled: [S, B] scores on the same resamples.
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
