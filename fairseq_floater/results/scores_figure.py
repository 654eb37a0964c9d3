"""The scores of an experiment's systems as bars with intervals."""

from __future__ import annotations

import os
from typing import Any

from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure
from fairseq_floater.results.runs import confidence_interval
from fairseq_floater.results.table import Results


def plot_scores(results: Results, path: str | os.PathLike[str]) -> None:
    """BLEU of every run on every test set as grouped bars with bootstrap intervals.

    Writes the format of ``path``'s ending, one of :data:`FORMATS`.
    """
    bars = {
        (test, row.name): Bar(row.scores[test]["bleu"]["score"], _interval_of(row.scores[test]))
        for row in results.rows
        for test in results.tests
        if test in row.scores
    }
    names = [row.name for row in results.rows]
    with new_figure(path, 1, len(names) * len(results.tests)) as (figure, (axes,)):
        grouped_bars(axes, results.tests, names, bars)
        axes.set_ylabel("BLEU (95 % bootstrap interval)")
        legend(figure, axes)


def _interval_of(score: dict[str, Any]) -> tuple[float, float] | None:
    return confidence_interval(score["bleu"])
