"""Score systems on groups of sentences: bins of source length, or whole test sets.

BLEU and chrF flatter hypotheses that stop early (a correct prefix scores), and models stop early on
sentences longer than any they saw. So the length ratio, the share of hypotheses cut off by the length
limit and the teacher-forced loss of the references stand beside them.

Every score is a function of counts summed over sentences: of those of a group, the group's score; of all
sentences, exactly the corpus's. Every system is scored on the same bootstrap resamples of sentences, so
that differences are paired (Koehn, 2004).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.metrics import (
    Array,
    Score,
    bleu_metric,
    check_bootstrap,
    chrf_metric,
    corpus_score,
    sentence_counts,
)
from fairseq_floater.evaluation.s2l.comparisons import compare, rank
from fairseq_floater.evaluation.s2l.options import S2LError
from fairseq_floater.evaluation.s2l.report import BinScore, Measure, S2LScores
from fairseq_floater.evaluation.s2l.statistics import bootstrap_scores
from fairseq_floater.evaluation.s2l.systems import (
    EvaluationSet,
    SystemFiles,
    SystemRun,
    check_same_tokens,
    read_runs,
)

# Below this many sentences, sacreBLEU's users learnt, a BLEU score means little.
FEW_SENTENCES = 100
# Below this share of the references' length hypotheses count as stopping early, above that one as running on.
EARLY_STOP, RUNS_ON = 0.9, 1.1
# The largest a and b of fairseq's rule for the longest output.
LARGEST_LIMIT = 1_000_000


def begin(
    names: Sequence[str],
    target: str,
    *,
    references: Path,
    length: str,
    baseline: str | None = None,
    length_limit: tuple[float, float] | None = None,
    tokenize: str | None = None,
    bootstrap: int = 1000,
    seed: int = 12345,
    labels: Mapping[str, str] | None = None,
) -> tuple[S2LScores, Any]:
    """Return an empty report, and sacreBLEU's metric that its scores are made with.

    Args:
        names: of the systems, in the order of the report.
        target: the language of the references.
        references: the folder that has them.
        length: what lengths of sentences are counted in.
        baseline: the system to compare every other one with, by paired bootstrap.
        length_limit: (a, b) of ``--max-len-a`` and ``--max-len-b``: hypotheses of a * source + b
            tokens or more count as cut off (source with end symbol, as fairseq counts; where the
            model's --max-target-positions are fewer, that limit is not known here).
        tokenize: sacreBLEU's tokenizer; None: its choice for the target language.
        bootstrap: resamples for intervals and p-values, 0 for none.
        seed: of the resampling.
        labels: the names of systems in tables and figures, where these are not their own.

    Raises:
        UsageError: a baseline or a label that is of none of the systems, two with one label, a limit
            that is none.
    """
    shown = {name: (labels or {}).get(name, name) for name in names}
    if baseline is not None and baseline not in shown:
        known = ", ".join(shown)
        raise UsageError(f"`--baseline` must be one of {known}, but is {baseline!r} instead.")
    if len(set(shown.values())) < len(shown):
        raise UsageError(f"`--label` must tell the systems apart, but they are {shown}.")
    if unknown := set(labels or {}) - set(names):
        known = ", ".join(shown)
        raise UsageError(
            f"`--label` must be of one of {known}, but is of {min(unknown)!r} instead."
        )
    _check_limit(length_limit)
    check_bootstrap(bootstrap, seed)
    bleu = bleu_metric(tokenize, target)
    # sacreBLEU knows the number of references, a part of the signature, once something is scored.
    corpus_score(bleu, ["x"], ["x"])
    report = S2LScores(
        split=str(references),
        labels=shown,
        baseline=baseline,
        signature=str(bleu.get_signature()),
        length=length,
        resamples=bootstrap,
        seed=seed,
        length_limit=length_limit,
    )
    return report, bleu


def _check_limit(limit: tuple[float, float] | None) -> None:
    if limit is not None and not all(0 <= x <= LARGEST_LIMIT for x in limit):
        raise UsageError(
            "`--max-len-a` and `--max-len-b` must not be negative, nor above "
            f"{LARGEST_LIMIT:,}, but are {limit}."
        )


class ScoredSet:
    """A test set, and what is counted of every sentence of every system's runs on it.

    Args:
        test: its sentences.
        systems: their output for it.
        bleu: sacreBLEU's metric.
    """

    def __init__(self, test: EvaluationSet, systems: Sequence[SystemFiles], bleu: Any):
        self.test = test
        self.folders = {s.name: [str(Path(file).parent) for file in s.hypotheses] for s in systems}
        self.runs = {files.name: read_runs(files, self.test) for files in systems}
        check_same_tokens(self.runs)
        self.bleu, self.chrf = (
            {
                name: [sentence_counts(m, run.hypotheses, self.test.references) for run in runs]
                for name, runs in self.runs.items()
            }
            for m in (bleu, chrf_metric())
        )

    def add_group(self, name: str, index: Array, report: S2LScores) -> None:
        """Add the scores of every system on a group of sentences.

        Args:
            name: of the group.
            index: which of the test set's sentences are in the group.
            report: what the scores are added to.

        Raises:
            S2LError: the group is empty.
        """
        if not len(index):
            raise S2LError(f"{self.test.path} has no pair in the bin {name}.")
        report.runs |= self.folders
        report.sentences[name] = len(index)
        report.mean_length[name] = float(np.mean(self.test.source_tokens[index]))
        if self.test.files:
            report.files[name] = dict(Counter(self.test.files[i] for i in index))
        scores = report.scores[name] = {
            system: self._score(system, index, report) for system in self.runs
        }
        # A warm start before training on is no contestant: it has its own table.
        untrained = report.untrained.values()
        contestants = {name: found for name, found in scores.items() if name not in untrained}
        if report.baseline in contestants:
            compare(contestants, report.baseline, report.seed)
        rank(contestants)
        if len(index) < FEW_SENTENCES:
            report.warnings.append(
                f"{name} holds {len(index)} sentences only: scores of fewer than {FEW_SENTENCES} "
                "mean little."
            )

    def _score(self, system: str, index: Array, report: S2LScores) -> BinScore:
        runs, resampling = self.runs[system], (report.resamples, report.seed)
        counts = [of_all[index] for of_all, _ in self.bleu[system]]
        losses = [run.losses[index] for run in runs if run.losses is not None]
        ratios = [c[:, 0].sum() / max(c[:, 1].sum(), 1) for c in counts]
        return BinScore(
            bleu=_measure(counts, self.bleu[system][0][1], *resampling),
            loss=_measure(losses, _bits_per_token, *resampling) if losses else None,
            chrf=float(np.mean([of_sums(c[index].sum(0)) for c, of_sums in self.chrf[system]])),
            length_ratio=float(np.mean(ratios)),
            cut_off=self._cut_off(runs, index, report.length_limit),
        )

    def _cut_off(
        self, runs: Sequence[SystemRun], index: Array, limit: tuple[float, float] | None
    ) -> float | None:
        """Return the share of hypotheses that reached the length limit; None where nothing tells."""
        lengths = [run.lengths[index] for run in runs if run.lengths is not None]
        if limit is None or len(lengths) < len(runs):
            return None
        a, b = limit
        # fairseq cuts at the limit of the batch's longest source; a sentence's own is no larger.
        limits = (a * (self.test.source_tokens[index] + 1) + b).astype(np.int64)
        return float(np.mean([float(np.mean(of_run > limits)) for of_run in lengths]))


def warn_of_lengths(report: S2LScores) -> None:
    """Add warnings of the systems whose hypotheses are shorter or longer than the references."""
    for extreme, text in (
        (
            min,
            f"Hypotheses that stop early, at less than {EARLY_STOP} of the references' length, are "
            "flattered by BLEU and chrF; read the loss. At its shortest: ",
        ),
        (
            max,
            f"Hypotheses that run on, past {RUNS_ON} of the references' length, lose BLEU, while the loss of "
            "the references does not show it. At its longest: ",
        ),
    ):
        found = []
        for system, label in report.labels.items():
            ratios = {n: of[system].length_ratio for n, of in report.scores.items() if system in of}
            name, ratio = extreme(ratios.items(), key=lambda group: group[1])
            if ratio < EARLY_STOP if extreme is min else ratio > RUNS_ON:
                found.append(f"{label} {ratio:.2f} in {name}")
        if found:
            report.warnings.append(text + "; ".join(found))


def _bits_per_token(sums: Array) -> float:
    return float(sums[0] / sums[1])


def _measure(runs: Sequence[Array], score: Score, resamples: int, seed: int) -> Measure:
    """Return the mean over seeds with the central 95 % of its resamples, and each seed's own value."""
    per_seed = [score(counts.sum(0)) for counts in runs]
    resampled, interval = bootstrap_scores(runs, score, resamples, seed), None
    if resamples:
        low, high = np.percentile(resampled.mean(axis=0), [2.5, 97.5])
        interval = float(low), float(high)
    return Measure(float(np.mean(per_seed)), interval, per_seed, resampled)
