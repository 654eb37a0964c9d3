"""Score systems on groups of sentences: bins of source length, or whole test sets.

BLEU and chrF overrate hypotheses that stop early, because a correct prefix scores, and models stop
early on sentences longer than any in training. So three more numbers are reported: the length ratio, the
share of hypotheses cut off by the length limit, and the teacher-forced loss of the references.

Every score is a function of counts summed over the sentences of a group. For all sentences it is exactly
the corpus score. All systems are scored on the same bootstrap resamples of sentences, so differences
are paired (Koehn, 2004).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fairseq_floater.data.parallel_text import FilePath
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.lines import ScoringError
from fairseq_floater.evaluation.metrics import (
    Array,
    Chrf,
    Score,
    bleu_metric,
    check_bootstrap,
    corpus_score,
    exact_matches,
    score_of_sums,
    sentence_counts,
)
from fairseq_floater.evaluation.s2l import statistics
from fairseq_floater.evaluation.s2l.bin_scores import BinScore, SeedMean, compare, rank
from fairseq_floater.evaluation.s2l.report import WINDOWS, S2LScores
from fairseq_floater.evaluation.s2l.systems import (
    EvaluationSet,
    SystemFiles,
    SystemRun,
    check_same_tokens,
    known_seeds,
    read_runs,
)

# With fewer sentences than this, a BLEU score means little (experience of sacreBLEU's users).
FEW_SENTENCES = 100
# Length ratios below which hypotheses count as stopping early, and above which as running on.
EARLY_STOP, RUNS_ON = 0.9, 1.1
_OTHER_SEEDS = (
    "Systems have runs of different seeds, so they are not compared seed by seed: a difference may come "
    "from the seeds."
)
# The most systems that a warning names.
_NAMED = 5


class GroupScorer:
    """Score systems on groups of sentences, and collect the scores in ``report``.

    Args:
        target: the language of the references, which are in the folder ``references``.
        length: text that says what lengths are counted in.
        baseline: the system to compare all others with, by paired bootstrap.
        length_limit: (a, b) of ``--max-len-a`` and ``--max-len-b``. Hypotheses of a * source + b
            tokens or more count as cut off; as in fairseq, the source's end symbol counts. A lower
            limit by the model's --max-target-positions is not known here.
        tokenize: sacreBLEU's tokenizer; None: its choice for the target language.
        exact_match: whether to count exact matches.
        bootstrap: resamples for intervals and p-values, drawn with ``seed``; 0 for none.
        labels: the names of systems in tables and figures; default: a system's own name.
    """

    def __init__(
        self,
        names: Sequence[str],
        target: str,
        *,
        references: Path,
        length: str,
        baseline: str | None = None,
        length_limit: tuple[float, float] | None = None,
        tokenize: str | None = None,
        exact_match: bool = False,
        bootstrap: int = 1000,
        seed: int = 12345,
        labels: Mapping[str, str] | None = None,
    ):
        shown, known = {name: (labels or {}).get(name, name) for name in names}, ", ".join(names)
        if baseline is not None and baseline not in shown:
            raise UsageError(f"`--baseline` must be one of {known}, but is {baseline!r} instead.")
        if len(set(shown.values())) < len(shown):
            raise UsageError(f"`--label` must differ between the systems, but is {shown}.")
        if unknown := set(labels or {}) - set(names):
            name = min(unknown)
            raise UsageError(f"`--label` must name one of {known}, but names {name!r} instead.")
        if length_limit is not None and min(length_limit) < 0:
            rule = "`--max-len-a` and `--max-len-b` must not be negative"
            raise UsageError(f"{rule}, but are {length_limit}.")
        check_bootstrap(bootstrap, seed)
        self.bleu, self.exact_match = bleu_metric(tokenize, target), exact_match
        # The signature has the number of references, which sacreBLEU knows after scoring something.
        corpus_score(self.bleu, ["x"], ["x"])
        self.report = S2LScores(
            split=str(references),
            labels=shown,
            baseline=baseline,
            signature=str(self.bleu.get_signature()),
            length=length,
            resamples=bootstrap,
            seed=seed,
            length_limit=length_limit,
        )
        if baseline in self.report.untrained.values():
            raise UsageError(
                f"`--baseline` must be a trained model, but {baseline} is the warm start of another system."
            )

    def finish(self) -> S2LScores:
        """Return the report; warn of hypotheses that are much shorter or longer than the references."""
        report, early, late = self.report, [], []
        for system, label in report.labels.items():
            ratios = {n: of[system].length_ratio for n, of in report.scores.items() if system in of}
            shortest, longest = (extreme(ratios, key=ratios.__getitem__) for extreme in (min, max))
            if ratios[shortest] < EARLY_STOP:
                early.append((ratios[shortest], f"{label} {ratios[shortest]:.2f} in {shortest}"))
            if ratios[longest] > RUNS_ON:
                late.append((-ratios[longest], f"{label} {ratios[longest]:.2f} in {longest}"))
        if early:
            report.warnings.append(
                f"BLEU and chrF overrate hypotheses that stop early, at less than {EARLY_STOP} of the "
                f"references' length; compare the loss. The shortest: {_first(early)}"
            )
        if late:
            report.warnings.append(
                f"Hypotheses that run on, past {RUNS_ON} of the references' length, lose BLEU, but the "
                f"loss of the references does not show this. The longest: {_first(late)}"
            )
        return report


def _first(systems: list[tuple[float, str]]) -> str:
    """Return the names with the lowest numbers, and how many others there are."""
    names = [name for _, name in sorted(systems)]
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more


class ScoredSet:
    """A test set, and the counts of each of its sentences for every run of every system."""

    def __init__(self, scorer: GroupScorer, test: EvaluationSet, systems: Sequence[SystemFiles]):
        self.test, self.report = test, scorer.report
        self.folders = {s.name: [str(Path(file).parent) for file in s.hypotheses] for s in systems}
        self.runs = {files.name: read_runs(files, self.test) for files in systems}
        known = {s.name: known_seeds(s.hypotheses) for s in systems}
        self.seeds = {s.name: known[s.name] or _numbers(s.hypotheses) for s in systems}
        self.has_seeds = {name for name, seeds in known.items() if seeds}
        check_same_tokens(self.runs)
        metrics, theirs = (scorer.bleu, Chrf()), test.reference_sentences
        ours = [test.sentences(run.hypotheses) for runs in self.runs.values() for run in runs]
        self.bleu, self.chrf = (self._by_system(sentence_counts(m, ours, theirs)) for m in metrics)
        self.of_bleu, self.of_chrf = (partial(score_of_sums, m) for m in metrics)
        self.exact = {}
        if scorer.exact_match:
            self.exact = self._by_system([_exact(of_run, theirs) for of_run in ours])

    def _by_system(self, counts: Sequence[Array]) -> dict[str, list[Array]]:
        """Sum the counts of all runs, [M, K] each, over documents; return them by system."""
        of_runs = iter(counts)
        return {
            name: [self.test.summed(next(of_runs)) for _ in runs]
            for name, runs in self.runs.items()
        }

    def add_group(self, name: str, index: Array) -> None:
        """Score every system on the sentences at ``index``, as a group."""
        if not len(index):
            raise ScoringError(f"{self.test.path} has no pair in the bin {name}.")
        report = self.report
        report.runs |= self.folders
        if len({*map(frozenset, self.seeds.values())}) > 1 and _OTHER_SEEDS not in report.warnings:
            report.warnings.append(_OTHER_SEEDS)
        report.sentences[name] = len(index)
        report.mean_length[name] = float(np.mean(self.test.source_tokens[index]))
        if self.test.files:
            report.files[name] = dict(Counter(self.test.files[i] for i in index))
        scores = report.scores[name] = {system: self._score(system, index) for system in self.runs}
        # Warm starts before further training are not compared or ranked: they have their own table.
        untrained = report.untrained.values()
        contestants = {name: score for name, score in scores.items() if name not in untrained}
        if report.baseline in contestants:
            compare(contestants, report.baseline, report.seed, self.has_seeds)
        rank(contestants)
        if len(index) < FEW_SENTENCES:
            report.warnings.append(
                f"{name} holds only {len(index)} sentences: scores of fewer than {FEW_SENTENCES} "
                "sentences mean little."
            )

    def _score(self, system: str, index: Array) -> BinScore:
        runs, report = self.runs[system], self.report
        resampling = report.resamples, report.seed, self.seeds[system]
        counts = [of_all[index] for of_all in self.bleu[system]]
        losses = [run.losses[index] for run in runs if run.losses is not None]
        scores = [run.scores[index] for run in runs if run.scores is not None]
        exact = [of_run[index] for of_run in self.exact.get(system, ())]
        ratios = [c[:, 0].sum() / max(c[:, 1].sum(), 1) for c in counts]
        return BinScore(
            bleu=_mean(counts, self.of_bleu, *resampling),
            loss=_mean(losses, _ratio, *resampling) if losses else None,
            score=_mean(scores, _ratio, *resampling) if scores else None,
            exact=_mean(exact, _ratio, *resampling) if exact else None,
            chrf=float(np.mean([self.of_chrf(c[index].sum(0)) for c in self.chrf[system]])),
            length_ratio=float(np.mean(ratios)),
            # In windows, fairseq's limit is that of each window.
            cut_off=None if WINDOWS in system else self._cut_off(runs, index),
        )

    def _cut_off(self, runs: Sequence[SystemRun], index: Array) -> float | None:
        """Return the share of hypotheses that reached the length limit; None if unknown."""
        lengths = [run.lengths[index] for run in runs if run.lengths is not None]
        if self.report.length_limit is None or len(lengths) < len(runs):
            return None
        a, b = self.report.length_limit
        # fairseq uses the limit for the longest source of a batch, which is no lower than a sentence's.
        limits = a * (self.test.source_tokens[index] + 1) + b
        return float(np.mean([float(np.mean(of_run > limits)) for of_run in lengths]))


def _exact(hypotheses: Sequence[str], references: Sequence[str]) -> Array:
    """Return [N, 2]: 1 if the hypothesis equals its reference, else 0; and 1 for each sentence."""
    return np.array([(match, 1) for match in exact_matches(hypotheses, references)])


def _ratio(sums: Array) -> float:
    return float(sums[0] / sums[1])


def _numbers(files: Sequence[FilePath]) -> list[str]:
    return [str(number) for number in range(1, len(files) + 1)]


def _mean(
    runs: Sequence[Array], score: Score, resamples: int, seed: int, seeds: list[str]
) -> SeedMean:
    """Return the mean over seeds with the central 95 % of its resamples, and the value of each seed."""
    per_seed = [score(counts.sum(0)) for counts in runs]
    resampled, interval = statistics.bootstrap_scores(runs, score, resamples, seed), None
    if resamples:
        low, high = np.percentile(resampled.mean(axis=0), [2.5, 97.5])
        interval = float(low), float(high)
    return SeedMean(float(np.mean(per_seed)), interval, per_seed, resampled, seeds=seeds)
