"""Score systems on a short-to-long test set, bin by bin and in all.

BLEU and chrF flatter hypotheses that stop early (a correct prefix scores), and models stop early on
sentences longer than any they saw. So the length ratio, the share of hypotheses cut off by the length
limit and the teacher-forced loss of the references stand beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import CHRF

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.metrics import (
    Array,
    Score,
    bleu_metric,
    check_bootstrap,
    corpus_score,
    sentence_counts,
)
from fairseq_floater.evaluation.s2l.bins import S2LError
from fairseq_floater.evaluation.s2l.held_out import SHORT_TEST, TEST
from fairseq_floater.evaluation.s2l.score_report import BinScore, Comparison, Measure, S2LScores
from fairseq_floater.evaluation.s2l.split_report import SplitReport
from fairseq_floater.evaluation.s2l.statistics import (
    Bootstrap,
    bits_per_token,
    interval,
    paired_p_value,
)
from fairseq_floater.evaluation.s2l.systems import (
    EvaluationSet,
    SystemFiles,
    SystemRun,
    check_same_tokens,
    read_runs,
)

ALL = "all"
# Below this many sentences, sacreBLEU's users learnt, a BLEU score means little.
FEW_SENTENCES = 100
# Below this share of the references' length, hypotheses count as stopping early.
EARLY_STOP = 0.9
# The largest a and b of fairseq's rule for the longest output.
LARGEST_LIMIT = 1_000_000


def score(
    split_dir: Path,
    systems: Sequence[SystemFiles],
    *,
    short_systems: Sequence[SystemFiles] = (),
    baseline: str | None = None,
    length_limit: tuple[float, float] | None = None,
    tokenize: str = "13a",
    bootstrap: int = 1000,
    seed: int = 12345,
    labels: dict[str, str] | None = None,
) -> S2LScores:
    """Score systems on the test pairs of ``floater s2l split``.

    Args:
        split_dir: what ``floater s2l split`` made.
        systems: hypotheses of ``test``, in the order of the report.
        short_systems: the same systems on ``test_short``, for the trained lengths beside the bins.
        baseline: the system to compare every other one with, by paired bootstrap.
        length_limit: (a, b) of ``--max-len-a`` and ``--max-len-b``: hypotheses of a * source + b
            tokens or more count as cut off (source with end symbol, as fairseq counts; where the
            model's --max-target-positions are fewer, that limit is not known here).
        tokenize: sacreBLEU's tokenizer.
        bootstrap: resamples for intervals and p-values, 0 for none.
        seed: of the resampling.
        labels: the names of systems in tables and figures, where these are not their own.

    Raises:
        UsageError: no system, a baseline that is none of them, a system named twice.
        S2LError, ScoringError: files that do not belong to the split.
    """
    names = [files.name for files in systems]
    labels = {name: (labels or {}).get(name, name) for name in names}
    _check_systems(names, short_systems, baseline, labels)
    check_bootstrap(bootstrap, seed)
    if length_limit is not None and not all(0 <= x <= LARGEST_LIMIT for x in length_limit):
        raise UsageError(
            "`--max-len-a` and `--max-len-b` must not be negative, nor above "
            f"{LARGEST_LIMIT:,}, but are {length_limit}."
        )
    split = SplitReport.read(split_dir)
    options = split.made_from["options"]
    langs = (options["source"], options["target"])
    bleu = bleu_metric(tokenize, options["target"])
    # sacreBLEU knows the number of references, a part of the signature, once something is scored.
    corpus_score(bleu, ["x"], ["x"])
    report = S2LScores(
        split=str(split_dir),
        labels=labels,
        baseline=baseline,
        signature=str(bleu.get_signature()),
        length=f"source tokens without the end symbol; tokens of {split.tokens_of}",
        resamples=bootstrap,
        seed=seed,
        length_limit=length_limit,
    )
    scorer = _Scorer(report, bleu)
    if short_systems:
        test = EvaluationSet.read(split_dir, SHORT_TEST, langs, options["encoded"])
        runs = {files.name: read_runs(files, test) for files in short_systems}
        check_same_tokens(runs)
        scorer.add(split.bins.short_name, test, runs, np.arange(len(test)))
    test = EvaluationSet.read(split_dir, TEST, langs, options["encoded"])
    runs = {files.name: read_runs(files, test) for files in systems}
    check_same_tokens(runs)
    for name in split.bins.names:
        members = test.members(name)
        if not len(members):
            raise S2LError(f"{split_dir / TEST}.tsv has no pair in the bin {name}.")
        scorer.add(name, test, runs, members)
    scorer.add(ALL, test, runs, np.arange(len(test)))
    _warn_of_early_stops(report)
    return report


def _check_systems(
    names: Sequence[str],
    short_systems: Sequence[SystemFiles],
    baseline: str | None,
    labels: dict[str, str],
) -> None:
    if not names:
        raise UsageError("At least one system is needed: `--hypotheses NAME=FILE`.")
    if baseline is not None and baseline not in names:
        known = ", ".join(names)
        raise UsageError(f"`--baseline` must be one of {known}, but is {baseline!r} instead.")
    for files in short_systems:
        if files.name not in names:
            raise UsageError(f"`--short` names {files.name}, which has no `--hypotheses`.")
    if len(set(labels.values())) < len(names):
        raise UsageError(f"`--label` must tell the systems apart, but they are {labels}.")


class _Scorer:
    """Adds the scores of bins to a report; keeps each run's counts over a test set."""

    def __init__(self, report: S2LScores, bleu: Any):
        self.report, self.metrics = report, (bleu, CHRF())
        self.counts: dict[SystemRun, list[tuple[Array, Score]]] = {}

    def add(
        self, name: str, test: EvaluationSet, runs: dict[str, list[SystemRun]], index: Array
    ) -> None:
        """Add the scores of every system on the sentences of a bin.

        Args:
            name: of the bin.
            test: the test set.
            runs: the seeds of each system on it.
            index: which of its sentences are in the bin.
        """
        report = self.report
        report.add_bin(name, len(index), float(np.mean(test.source_tokens[index])))
        bootstrap = Bootstrap(len(index), report.resamples, report.seed)
        for system, seeds in runs.items():
            bleu, chrf = zip(*(self._counts(run, test) for run in seeds))
            counts = [of_all[index] for of_all, _ in bleu]
            losses = [run.losses[index] for run in seeds if run.losses is not None]
            ratios = [c[:, 0].sum() / max(c[:, 1].sum(), 1) for c in counts]
            report.scores[name][system] = BinScore(
                bleu=_measure(counts, bleu[0][1], bootstrap),
                loss=_measure(losses, bits_per_token, bootstrap) if losses else None,
                chrf=float(np.mean([of_sums(c[index].sum(0)) for c, of_sums in chrf])),
                length_ratio=float(np.mean(ratios)),
                cut_off=self._cut_off(seeds, test, index),
            )
        self._compare(report.scores[name])
        if len(index) < FEW_SENTENCES:
            report.warnings.append(
                f"{name} holds {len(index)} sentences only: scores of fewer than {FEW_SENTENCES} "
                "mean little."
            )

    def _counts(self, run: SystemRun, test: EvaluationSet) -> list[tuple[Array, Score]]:
        """Return what BLEU and chrF count of every sentence, [N, 10] and [N, 18]."""
        if run not in self.counts:
            self.counts[run] = [
                sentence_counts(metric, run.hypotheses, test.references) for metric in self.metrics
            ]
        return self.counts[run]

    def _cut_off(self, seeds: list[SystemRun], test: EvaluationSet, index: Array) -> float | None:
        """Return the share of hypotheses that reached the length limit; None where nothing tells."""
        if self.report.length_limit is None or any(run.lengths is None for run in seeds):
            return None
        a, b = self.report.length_limit
        # fairseq cuts at the limit of the batch's longest source; a sentence's own is no larger.
        limits = (a * (test.source_tokens[index] + 1) + b).astype(np.int64)
        shares = [
            float(np.mean(run.lengths[index] > limits)) for run in seeds if run.lengths is not None
        ]
        return float(np.mean(shares))

    def _compare(self, scores: dict[str, BinScore]) -> None:
        base = scores.get(self.report.baseline or "")
        if base is None:
            return
        for found in scores.values():
            found.bleu_gain = _comparison(found.bleu, base.bleu)
            if found.loss is not None and base.loss is not None:
                found.loss_gain = _comparison(found.loss, base.loss)


def _warn_of_early_stops(report: S2LScores) -> None:
    for system in report.systems:
        short = [
            f"{name} {found[system].length_ratio:.2f}"
            for name, found in report.scores.items()
            if system in found and found[system].length_ratio < EARLY_STOP
        ]
        if short:
            report.warnings.append(
                f"{report.labels[system]} stops early: hypotheses of {', '.join(short)} of the "
                "references' length. BLEU and chrF flatter that; read the loss."
            )


def _measure(runs: Sequence[Array], score: Score, bootstrap: Bootstrap) -> Measure:
    """Return the mean over seeds with the interval of that mean, and each seed's own value."""
    per_seed = [score(statistics.sum(0)) for statistics in runs]
    resampled = bootstrap.scores(runs, score)
    low, high = interval(resampled)
    return Measure(float(np.mean(per_seed)), low, high, per_seed, resampled)


def _comparison(ours: Measure, base: Measure) -> Comparison:
    difference = ours.value - base.value
    return Comparison(difference, paired_p_value(difference, ours.resampled - base.resampled))
