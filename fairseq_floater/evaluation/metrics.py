"""sacreBLEU's metrics, with the texts and signatures that `floater score` reports."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF

from fairseq_floater.data.moses_subwords import MosesTokens
from fairseq_floater.data.parallel_text import batched, first_subtag
from fairseq_floater.evaluation.lines import scoring_error

Array = NDArray[Any]
# Turns counts summed over sentences [K] into a score.
Score = Callable[[Array], float]

TOKENIZERS = tuple(BLEU.TOKENIZERS)
_HYPHEN = re.compile(r"(\S)-(\S)")
# sacreBLEU holds the n-grams of all references that it is given: for chrF some 70 kB of 25 words.
_AT_ONCE = 1_000
# The interval leaves out 1/40 of the resamples at each end; fewer would leave out none.
_FEWEST_RESAMPLES = 40
_SEED = "SACREBLEU_SEED"


@dataclass(frozen=True)
class Metric:
    """One score with its signature; sacreBLEU's are in 0..100.

    ``mean`` and ``half_width`` are those of sacreBLEU's ``--confidence``: the mean of the bootstrap
    scores and half the span of their central 95%. Both are None without a bootstrap, and for a score
    of 0.
    """

    name: str
    score: float
    signature: str
    mean: float | None = None
    half_width: float | None = None

    @classmethod
    def from_score(cls, name: str, metric: Any, score: Any, labels: dict[str, str]) -> Metric:
        """Return the report of the score object that ``metric`` made; ``labels`` join the signature."""
        signature = metric.get_signature()
        for key, value in labels.items():
            signature.update(key, value)
        # Six digits, as sacreBLEU's command gives them with `-w 6`.
        result = json.loads(score.format(width=6, signature=str(signature), is_json=True))
        interval = result.get("confidence_mean"), result.get("confidence_var")
        return cls(name, score.score, str(signature), *interval)

    @classmethod
    def from_numbers(cls, name: str, numbers: Sequence[float], bootstrap: int, seed: int) -> Metric:
        """Return the mean of one number a sentence, with the interval of its bootstrap."""
        values, generator = np.array(numbers), np.random.default_rng(seed)
        signature = f"mean:{len(values)}|bs:{bootstrap}|seed:{seed}"
        if not bootstrap:
            return cls(name, float(values.mean()), signature)
        draws = (generator.integers(len(values), size=len(values)) for _ in range(bootstrap))
        means = [values[draw].mean() for draw in draws]
        low, high = np.percentile(means, [2.5, 97.5])
        interval = float(np.mean(means)), float(high - low) / 2
        return cls(name, float(values.mean()), signature, *interval)


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Tell of each of N sentences whether hypothesis and reference are the same words.

    Both are detokenised, and compared as they are but for runs of spaces.
    """
    pairs = zip(hypotheses, references, strict=True)
    return [ours.split() == theirs.split() for ours, theirs in pairs]


def bleu_metric(tokenize: str | None, language: str) -> Any:
    """Return sacreBLEU's BLEU.

    Raises:
        ScoringError: the tokenizer is unknown or not installed.
    """
    if tokenize is not None and tokenize not in TOKENIZERS:
        rule = f"`tokenize` must be one of {', '.join(TOKENIZERS)}"
        raise scoring_error(rule, f"is {tokenize!r}", option=True)
    try:
        # `force` silences sacreBLEU's warning of tokenised text, which names an option that is not ours.
        return BLEU(tokenize=tokenize, trg_lang=first_subtag(language), force=True)
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, OSError):
            reason = f"sacreBLEU could not download or read its model ({reason})"
        rule = "`tokenize` must be a tokenizer that is installed"
        given = f"is {tokenize!r}" if tokenize else f"is sacreBLEU's for {language}"
        raise scoring_error(rule, given, f": {reason}.") from None


class _Chrf(CHRF):
    """sacreBLEU's chrF, whose interval fails where some resamples score 0, a float among float32s."""

    def _compute_f_score(self, statistics: Any) -> Any:
        score = super()._compute_f_score(statistics)
        return statistics.dtype.type(score) if isinstance(statistics, np.ndarray) else score


def chrf_metric() -> Any:
    return _Chrf()


def check_bootstrap(bootstrap: int, seed: int) -> None:
    """Raise ScoringError for a number of resamples or a seed that makes no interval."""
    if bootstrap != 0 and bootstrap < _FEWEST_RESAMPLES:
        rule = f"`bootstrap` must be 0 (no interval) or at least {_FEWEST_RESAMPLES}"
        raise scoring_error(rule, f"is {bootstrap}", option=True)
    if seed < 0:
        raise scoring_error("`seed` must not be negative", f"is {seed}", option=True)


def corpus_score(
    metric: Any,
    hypotheses: Sequence[str],
    references: Sequence[str],
    bootstrap: int = 0,
    seed: int = 12345,
) -> Any:
    """Return sacreBLEU's score object for N hypotheses.

    Args:
        bootstrap: resamples for the interval, 0 for none. sacreBLEU holds them all at once: 48 bytes
            a sentence and resample for BLEU, 80 for chrF.
        seed: of the resamples, which sacreBLEU takes from the environment alone.
    """
    before = os.environ.get(_SEED)
    os.environ[_SEED] = str(seed)
    try:
        return metric.corpus_score(hypotheses, [references], n_bootstrap=bootstrap or 1)
    finally:
        del os.environ[_SEED]
        if before is not None:
            os.environ[_SEED] = before


def sentence_counts(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Array:
    """Count what a metric counts of each of N sentences; the counts of a corpus are their sum.

    With :class:`_Chrf` and :func:`score_of_sums` the one place that calls private methods of sacreBLEU (2.3
    and later versions 2).

    Returns:
        [N, K] int32; K is 10 for BLEU (both lengths, matches and n-grams by order), 18 for chrF of order 6
        (n-grams of the hypothesis, of the reference and of both, by order).
    """
    rows: list[list[int]] = []
    for pairs in batched(zip(hypotheses, references, strict=True), _AT_ONCE):
        ours, theirs = zip(*pairs)
        rows += metric._extract_corpus_statistics(ours, [theirs])
    return np.array(rows, dtype=np.int32)


def score_of_sums(metric: Any, sums: Array) -> float:
    """Turn the counts of a metric, summed over sentences [K], into a score in 0..100."""
    return float(metric._compute_score_from_stats(sums.tolist()).score)


def moses_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Return the lines in Moses tokens of a language, separated by spaces, as WMT14's test data are made."""
    moses = MosesTokens(language)
    return [" ".join(moses.test(line)) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Take words apart at hyphens, by the rule of fairseq's ``compound_split_bleu.sh``.

    Moses' ``-a`` has written ``@-@`` for a hyphen between two words, of which three tokens are made.
    """
    return [_HYPHEN.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]
