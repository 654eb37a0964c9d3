"""Score systems on a short-to-long test set, bin by bin and in all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.group_scores import ScoredSet, begin, warn_of_lengths
from fairseq_floater.evaluation.s2l.report import ALL, S2LScores
from fairseq_floater.evaluation.s2l.split_report import SHORT_TEST, TEST, SplitReport
from fairseq_floater.evaluation.s2l.systems import EvaluationSet, SystemFiles


def score(
    split_dir: Path,
    systems: Sequence[SystemFiles],
    *,
    short_systems: Sequence[SystemFiles] = (),
    **options: Any,
) -> S2LScores:
    """Score systems on the test pairs of ``floater s2l split``.

    Args:
        split_dir: what ``floater s2l split`` made.
        systems: hypotheses of ``test``, in the order of the report.
        short_systems: the same systems on ``test_short``, for the trained lengths beside the bins.
        options: baseline, length limit, metric, resampling and labels, as
            :func:`~fairseq_floater.evaluation.s2l.group_scores.begin` takes them.

    Raises:
        UsageError: no system, a baseline that is none of them, a system named twice.
        S2LError, ScoringError: files that do not belong to the split.
    """
    _check_systems(systems, short_systems)
    split = SplitReport.read(split_dir)
    made = split.made_from["options"]
    langs = (made["source"], made["target"])
    length = f"source tokens without the end symbol; tokens of {split.tokens_of}"
    names = [files.name for files in systems]
    report, bleu = begin(names, langs[1], references=split_dir, length=length, **options)

    def scored(name: str, files: Sequence[SystemFiles]) -> ScoredSet:
        return ScoredSet(EvaluationSet.read(split_dir, name, langs, made["encoded"]), files, bleu)

    if short_systems:
        short = scored(SHORT_TEST, short_systems)
        short.add_group(split.bins.short_name, np.arange(len(short.test)), report)
    long = scored(TEST, systems)
    for name in split.bins.names:
        long.add_group(name, long.test.members(name), report)
    long.add_group(ALL, np.arange(len(long.test)), report)
    warn_of_lengths(report)
    return report


def _check_systems(systems: Sequence[SystemFiles], short_systems: Sequence[SystemFiles]) -> None:
    if not systems:
        raise UsageError("At least one system is needed: `--hypotheses NAME=FILE`.")
    names = {files.name for files in systems}
    for files in short_systems:
        if files.name not in names:
            raise UsageError(f"`--short` names {files.name}, which has no `--hypotheses`.")
