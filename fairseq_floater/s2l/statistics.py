"""Corpus scores of any subset of sentences from per-sentence sums, and their bootstrap.

BLEU is a function of ten integers that add up over sentences: summed over the sentences of a bin
they give the bin's score, summed over all bins exactly the corpus score. The bootstrap resamples
sentences, the same ones for every system, so that differences are paired (Koehn, 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

from fairseq_floater.scoring import bleu_metric

Array = NDArray[Any]
# Resamples whose weights are held at once.
_CHUNK = 100


@dataclass(frozen=True)
class Estimate:
    """A value with its central 95 % bootstrap interval."""

    value: float
    low: float | None = None
    high: float | None = None


class BleuStatistics:
    """sacreBLEU's counts of each sentence, and its score of their sums."""

    def __init__(self, tokenize: str, target_language: str):
        self.corpus = bleu_metric(tokenize, target_language)
        # Only counts are taken from sentences; effective order quietens advice on their scores.
        self._sentence = BLEU(tokenize=tokenize, effective_order=True)

    @property
    def signature(self) -> str:
        # Set by scoring something; the number of references is part of it.
        self.corpus.corpus_score(["x"], [["x"]])
        return str(self.corpus.get_signature().format())

    def sentences(self, hypotheses: Sequence[str], references: Sequence[str]) -> Array:
        """[N, 2 + 2 * 4] int64: hypothesis length, reference length, matches and n-grams by order."""
        rows = []
        for hypothesis, reference in zip(hypotheses, references):
            score = self._sentence.sentence_score(hypothesis, [reference])
            rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
        return np.array(rows, dtype=np.int64).reshape(-1, 2 + 2 * self.corpus.max_ngram_order)

    def score(self, sums: Array) -> float:
        """BLEU 0..100 of summed statistics [10], sacreBLEU's own to the last digit."""
        order = self.corpus.max_ngram_order
        return float(
            BLEU.compute_bleu(
                correct=[int(n) for n in sums[2 : 2 + order]],
                total=[int(n) for n in sums[2 + order :]],
                sys_len=int(sums[0]),
                ref_len=int(sums[1]),
                smooth_method=self.corpus.smooth_method,
                smooth_value=self.corpus.smooth_value,
                effective_order=self.corpus.effective_order,
                max_ngram_order=order,
            ).score
        )


def bits_per_token(sums: Array) -> float:
    """Of summed (bits, tokens)."""
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

    def scores(self, runs: Sequence[Array], score: Callable[[Array], float]) -> Array:
        """Score of every resample, averaged over runs (seeds) [N, K] each: [resamples]."""
        if not self.resamples:
            return np.empty(0)
        generator = np.random.default_rng(self.seed)
        shares = np.full(self.sentences, 1 / self.sentences)
        found = []
        for start in range(0, self.resamples, _CHUNK):
            size = min(_CHUNK, self.resamples - start)
            # How often each sentence is drawn: N draws with replacement.
            weights = generator.multinomial(self.sentences, shares, size=size)
            per_run = [[score(sums) for sums in weights @ statistics] for statistics in runs]
            found.append(np.mean(per_run, axis=0))
        return np.concatenate(found)


def interval(value: float, resampled: Array) -> Estimate:
    """The value with the central 95 % of its resamples."""
    if not len(resampled):
        return Estimate(value)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def paired_p_value(difference: float, resampled: Array) -> float | None:
    """Chance of a difference as large if there were none: 1 for a system against itself.

    ``resampled`` are the differences on the same resamples; their spread around their own mean
    stands for chance (the shift method, as in sacreBLEU's paired bootstrap).
    """
    if not len(resampled):
        return None
    by_chance = np.abs(resampled - resampled.mean())
    return float((np.sum(by_chance >= abs(difference)) + 1) / (len(resampled) + 1))
