"""Resample sentences and training seeds: what of a difference between systems is chance.

Letters: S systems, R runs (seeds) of a system, N sentences, K counts of a sentence, B resamples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_floater.evaluation.metrics import Array, Score

LEVEL = 0.05  # chance of any pair of systems of a bin being told apart that is not different
# How many resamples to weigh at once, and how many weights to hold for them.
_CHUNK = 100
_MOST_WEIGHTS = 1 << 22


def bootstrap_scores(runs: Sequence[Array], score: Score, resamples: int, seed: int) -> Array:
    """Score resamples of N sentences, the same ones whenever N and the seed are the same.

    Returns:
        [R, B]: the scores of each run.
    """
    sentences = len(runs[0])
    generator = np.random.default_rng(seed)
    shares = np.full(sentences, 1 / sentences)
    scores = [np.empty((len(runs), 0))]
    chunk = max(1, min(_CHUNK, _MOST_WEIGHTS // sentences))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        # Draw N times with replacement: a weight says how often a sentence is drawn.
        weights = generator.multinomial(sentences, shares, size=size)
        scores.append(np.array([[score(sums) for sums in weights @ counts] for counts in runs]))
    return np.concatenate(scores, axis=1)


def difference_noise(ours: Array, base: Array, seed: int, *, paired: bool = True) -> Array | None:
    """Draw what chance adds to the difference of two systems' means over runs [R, B]: [B].

    Resamples tell how far sentences move it. How far training seeds do is estimated from few runs: the
    draws follow Student's distribution, with the degrees of freedom of Welch and Satterthwaite, so that
    with constant rows the p-value of :func:`p_value` is that of a t test. Resampling the runs themselves
    would call a fifth of all differences of three seeds significant at 5 % that are none. With
    ``paired``, row k of both is of one seed: three such rows or more are compared pair by pair. Two pairs
    would leave one degree of freedom.

    Returns:
        None where a system has one run, which says nothing about seeds.
    """
    if min(len(ours), len(base)) < 2:
        return None
    parts = [ours - base] if paired and len(ours) == len(base) > 2 else [ours, base]
    variances = np.array([part.mean(axis=1).var(ddof=1) / len(part) for part in parts])
    sentences = ours.mean(axis=0) - base.mean(axis=0)
    sentences -= sentences.mean()
    generator = np.random.default_rng(seed)
    normal = generator.standard_normal(len(sentences))
    noise: Array = sentences + normal * np.sqrt(variances.sum())
    if not (squares := (variances**2 / [len(part) - 1 for part in parts]).sum()):
        return noise  # the runs are equal
    freedom = min((variances.sum() + sentences.var()) ** 2 / squares, 1e9)
    return noise * np.sqrt(freedom / generator.chisquare(freedom, len(sentences)))


def p_value(difference: float, noise: Array) -> float:
    """Return the chance of a difference as large, either way, if there were none.

    Args:
        difference: of two systems; a system against itself has p = 1.
        noise: what chance adds to it [B]. Of sentences, it is the difference on resamples around its mean:
            the paired bootstrap. sacreBLEU's takes the differences without their signs and counts one
            side, so that its p-values are a half to a third of these.
    """
    return float((np.sum(np.abs(noise) >= abs(difference)) + 1) / (len(noise) + 1))


def holm(p_values: Sequence[float], comparisons: int) -> list[float]:
    """Correct p-values for the number of comparisons (Holm 1979), in their order.

    Rejecting all below a level, the chance that any of them is wrong stays below it. Where fewer p-values
    than ``comparisons`` are known, the others count as if they were larger.
    """
    order = np.argsort(p_values, kind="stable")
    counts = comparisons - np.arange(len(order))
    corrected = np.maximum.accumulate(counts * np.asarray(p_values, dtype=np.float64)[order])
    in_order = np.empty(len(order))
    in_order[order] = np.minimum(corrected, 1)
    return [float(p) for p in in_order]


def places(values: Sequence[float], resampled: Sequence[Array]) -> list[tuple[int, int]]:
    """Return the best and the worst place of each of S systems, 1 for the lowest value.

    Two systems are told apart where their difference, in its own standard errors, is larger than the
    largest of all pairs is by chance in 95 % of the resamples (Tukey's range test, by bootstrap): of all
    pairs of systems that do not differ, not one is told apart with that chance.

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
