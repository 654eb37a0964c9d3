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
from fairseq_floater.data.parallel_text import first_subtag
from fairseq_floater.evaluation.lines import scoring_error

Array = NDArray[Any]
# Turns counts summed over sentences [K] into a score.
Score = Callable[[Array], float]

TOKENIZERS = tuple(BLEU.TOKENIZERS)
_HYPHEN = re.compile(r"(\S)-(\S)")
# The interval leaves out 1/40 of the resamples at each end: at least one.
_FEWEST_RESAMPLES = 40
_SEED = "SACREBLEU_SEED"


@dataclass(frozen=True)
class Metric:
    """A score with its signature; sacreBLEU's scores are in 0..100.

    ``mean`` and ``half_width`` are those of sacreBLEU's ``--confidence``: the mean of the bootstrap
    scores and half the span of their central 95%. Both are None without a bootstrap, and if the score
    is 0.
    """

    name: str
    score: float
    signature: str
    mean: float | None = None
    half_width: float | None = None

    @classmethod
    def from_score(cls, name: str, metric: Any, score: Any, labels: dict[str, str]) -> Metric:
        """Convert the score object of a sacreBLEU ``metric``; ``labels`` are added to its signature."""
        signature = metric.get_signature()
        for key, value in labels.items():
            signature.update(key, value)
        # Six digits, as sacreBLEU's command gives them with `-w 6`.
        result = json.loads(score.format(width=6, signature=str(signature), is_json=True))
        interval = result.get("confidence_mean"), result.get("confidence_var")
        return cls(name, score.score, str(signature), *interval)

    @classmethod
    def from_numbers(cls, name: str, numbers: Sequence[float], bootstrap: int, seed: int) -> Metric:
        """Return the mean of ``numbers``, one per sentence, with its bootstrap interval."""
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
    """Return for each of N sentences whether hypothesis and reference have the same words.

    Both are detokenised text; only white space may differ.
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
        # `force` silences sacreBLEU's warning of tokenised text, which names an option that we lack.
        return BLEU(tokenize=tokenize, trg_lang=first_subtag(language), force=True)
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, OSError):
            reason = f"sacreBLEU could not download or read its model ({reason})"
        rule = "`tokenize` must be a tokenizer that is installed"
        given = f"is {tokenize!r}" if tokenize else f"is sacreBLEU's choice for {language}"
        raise scoring_error(rule, given, f": {reason}.") from None


class Chrf(CHRF):
    """sacreBLEU's chrF, but its interval does not fail if a resample scores 0."""

    def _compute_f_score(self, statistics: Any) -> Any:
        score = super()._compute_f_score(statistics)
        return statistics.dtype.type(score) if isinstance(statistics, np.ndarray) else score


def check_bootstrap(bootstrap: int, seed: int) -> None:
    """Raise ScoringError if there are too few resamples for an interval, or the seed is negative."""
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
        bootstrap: resamples for the interval, 0 for none. sacreBLEU keeps all of them in memory: 48
            bytes per sentence and resample for BLEU, 80 for chrF.
        seed: seed of the resamples; sacreBLEU reads it from the environment only.
    """
    before = os.environ.get(_SEED)
    os.environ[_SEED] = str(seed)
    try:
        return metric.corpus_score(hypotheses, [references], n_bootstrap=bootstrap or 1)
    finally:
        del os.environ[_SEED]
        if before is not None:
            os.environ[_SEED] = before


def sentence_counts(
    metric: Any, runs: Sequence[Sequence[str]], references: Sequence[str]
) -> list[Array]:
    """Return a metric's counts for each of N hypotheses of every run; the counts of a corpus are their sum.

    The n-grams of a reference, and of hypotheses that several runs share, are counted once. Only this
    function, :class:`Chrf` and :func:`score_of_sums` use private names of sacreBLEU (versions 2, from 2.3).

    Returns:
        for each run [N, K] int32; K is 10 for BLEU (both lengths, matches and n-grams by order), 18 for chrF
        of order 6 (n-grams of the hypothesis, of the reference and of both, by order).
    """
    sentences = []
    for reference, *hypotheses in zip(references, *runs, strict=True):
        distinct = list(dict.fromkeys(hypotheses))
        metric._ref_cache = metric._cache_references([[reference]]) * len(distinct)
        counts = dict(zip(distinct, metric._extract_corpus_statistics(distinct, None)))
        sentences.append(np.array([counts[text] for text in hypotheses], dtype=np.int32))
    return list(np.stack(sentences, axis=1))


def score_of_sums(metric: Any, sums: Array) -> float:
    """Compute a metric's score, 0..100, from its counts summed over sentences [K]."""
    return float(metric._compute_score_from_stats(sums.tolist()).score)


def moses_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Tokenise lines like WMT14's test data: Moses tokens of ``language``, separated by spaces."""
    moses = MosesTokens(language)
    return [" ".join(moses.test(line)) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Split words at hyphens by the rule of fairseq's ``compound_split_bleu.sh``.

    Moses' ``-a`` writes a hyphen between two words as ``@-@``; here it becomes three tokens.
    """
    return [_HYPHEN.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]
