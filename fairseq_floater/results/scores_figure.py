"""Draw the scores of an experiment's systems as bars with intervals."""

from __future__ import annotations

import os

from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure
from fairseq_floater.results.runs import confidence_interval
from fairseq_floater.results.table import Results


def plot_scores(results: Results, path: str | os.PathLike[str]) -> None:
    """Draw BLEU of every run on every test set as grouped bars with bootstrap intervals.

    Writes the format of ``path``'s ending, one of :data:`FORMATS`.
    """
    bars = {
        (test, run.name): Bar(score["bleu"]["score"], confidence_interval(score["bleu"]))
        for run in results.runs
        for test, score in run.scores.items()
    }
    names = [run.name for run in results.runs]
    with new_figure(path, 1, len(names) * len(results.tests)) as (figure, (axes,)):
        grouped_bars(axes, results.tests, names, bars)
        axes.set_ylabel("BLEU (95 % bootstrap interval)")
        legend(figure, axes)
