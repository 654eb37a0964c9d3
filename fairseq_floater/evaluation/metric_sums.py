"""sacreBLEU's metrics of a text of any length: what they count of sentences adds up.

BLEU is a function of ten integers that are summed over the sentences, chrF of eighteen. sacreBLEU
holds all of a text, the n-grams of all its references and all resamples at once (some 80 kB a
sentence with 1,000 resamples); here a block is held. Scores are sacreBLEU's to the last digit, and so are
intervals of up to :data:`BLOCK` sentences, as long as float32, in which sacreBLEU sums, holds the counts
exactly (2^24; beyond it ours are the more exact).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Of a reference, n-grams of characters take some 30 kB. BLOCK holds a whole number of these.
AT_ONCE = 512
# No published test set has as many sentences, so the draws of one are sacreBLEU's own.
BLOCK = 1 << 16
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Metric:
    """One score in 0..100 with its signature.

    ``mean`` and ``half_width`` are those of sacreBLEU's ``--confidence``: the mean of the bootstrap
    scores and half the span of their central 95%. Both are None without a bootstrap, and
    for a score of 0.
    """

    name: str
    score: float
    signature: str
    mean: float | None = None
    half_width: float | None = None


def blocks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """``items`` in lists of ``size``, the last one of what is left."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def sentence_counts(metric: Any, hypotheses: Iterable[str], references: Iterable[str]) -> Array:
    """[N, K] int64: what ``metric`` (one of sacreBLEU's) counts of each of N sentences.

    K is 10 for BLEU (both lengths, matches and n-grams by order), 18 for chrF of order 6
    (n-grams of the hypothesis, of the reference and of both, by order).
    """
    rows: list[list[int]] = []
    for pairs in blocks(zip(hypotheses, references, strict=True), AT_ONCE):
        ours, theirs = zip(*pairs)
        rows += metric._extract_corpus_statistics(ours, [theirs])
    return np.array(rows, dtype=np.int64)


def score_of(metric: Any, sums: Array) -> Any:
    """sacreBLEU's score object for summed counts [K]."""
    return metric._compute_score_from_stats([int(n) for n in sums])


class Resampling:
    """Draws of N sentences from N, with replacement, block by block.

    Of one block they are those of sacreBLEU under the same seed. Of more, it is drawn
    first how many come from each block, which makes the same resamples with the same chances.

    Args:
        sentences: N.
        resamples: how often; 0 for never.
        seed: of the draws.
        block: sentences in a block.
    """

    def __init__(self, sentences: int, resamples: int, seed: int, block: int = BLOCK):
        self._random = np.random.default_rng(seed)
        self._sizes = [min(block, sentences - start) for start in range(0, sentences, block)]
        shares = np.array(self._sizes) / sentences
        self._draws = self._random.multinomial(sentences, shares, size=resamples)
        self._sums: Array | None = None
        self._next = 0

    def add(self, counts: Array) -> None:
        """Draw from the next block, whose sentences have ``counts`` [block, K]."""
        if len(counts) != self._sizes[self._next]:
            raise ValueError(
                f"`counts` must be of {self._sizes[self._next]} sentences, but is of {len(counts)} instead."
            )
        if self._sums is None:
            self._sums = np.zeros((len(self._draws), counts.shape[1]))
        weighed = counts.astype(np.float64)  # exact, and multiplied faster than integers
        for resample, draws in enumerate(self._draws[:, self._next]):
            drawn = self._random.choice(len(counts), size=draws)
            self._sums[resample] += np.bincount(drawn, minlength=len(counts)) @ weighed
        self._next += 1

    def scores(self, metric: Any) -> list[Any]:
        """sacreBLEU's score object of every resample, in its arithmetic (float32)."""
        assert self._sums is not None
        return [metric._compute_score_from_stats(row) for row in self._sums.astype(np.float32)]


class MetricSums:
    """One of sacreBLEU's metrics over a text that comes in parts of :data:`AT_ONCE` sentences.

    Args:
        name: how a report calls it.
        metric: of sacreBLEU.
        labels: further entries of the signature.
    """

    def __init__(self, name: str, metric: Any, labels: Mapping[str, str]):
        self.name, self.metric, self.labels = name, metric, labels
        self.sums: Array | None = None
        self._resampling: Resampling | None = None
        self._waiting: list[Array] = []  # for the rest of their block

    def resample(self, sentences: int, resamples: int, seed: int) -> None:
        """Ask for an interval, before anything is added; 0 resamples make none."""
        if resamples:
            self._resampling = Resampling(sentences, resamples, seed)
            # As sacreBLEU's own bootstrap leaves them, for the signature.
            self.metric.n_bootstrap, self.metric.seed = resamples, str(seed)

    def add(self, hypotheses: Sequence[str], references: Sequence[str]) -> None:
        """Count the next part."""
        counts = sentence_counts(self.metric, hypotheses, references)
        total = counts.sum(0)
        self.sums = total if self.sums is None else self.sums + total
        if self._resampling is not None:
            self._waiting.append(counts)
            if len(self._waiting) * AT_ONCE == BLOCK:
                self._draw(self._resampling)

    def _draw(self, resampling: Resampling) -> None:
        if self._waiting:
            resampling.add(np.concatenate(self._waiting))
            self._waiting = []

    def result(self) -> Metric:
        """The score of all that was added."""
        assert self.sums is not None
        score = score_of(self.metric, self.sums)
        signature = self.metric.get_signature()
        for key, value in self.labels.items():
            signature.update(key, value)
        mean = half_width = None
        if self._resampling is not None:
            self._draw(self._resampling)
            score.estimate_ci(self._resampling.scores(self.metric))
            if score._mean > 0:
                # Six digits, as sacreBLEU's command gives them with `-w 6`.
                mean, half_width = (float(f"{x:.6f}") for x in (score._mean, score._ci))
        return Metric(self.name, score.score, str(signature.format()), mean, half_width)
