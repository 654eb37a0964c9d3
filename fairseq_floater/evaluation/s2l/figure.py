"""Draw scores by group of sentences: bars for a few systems, a line each for many."""

from __future__ import annotations

import math
import os

from fairseq_floater.evaluation.s2l.report import S2LScores
from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure, rows_of_bars

_MOST_BARS = 9  # systems whose bars can be told apart
_MOST_WITH_UNIT = 6  # groups whose names leave room for the word
_TITLES = {
    "bleu": "BLEU",
    "exact": "exact match",
    "loss": "loss, bits per token",
    "score": "score",
}


def plot_s2l(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw the scores by bin of source length, or by test set.

    Values are means over seeds with the bootstrap interval of the mean, small dots are seeds. The ending
    of ``path``, one of :data:`~fairseq_floater.figures.FORMATS`, chooses the format.
    """
    if len(report.labels) > _MOST_BARS:
        _plot_rows(report, path)
    else:
        _plot_bars(report, path)


def _bars(report: S2LScores, kind: str) -> dict[str, dict[str, Bar]]:
    return {
        group: {
            report.labels[system]: Bar(mean.value, mean.interval, mean.per_seed)
            for system, score in by_system.items()
            if (mean := getattr(score, kind)) is not None
        }
        for group, by_system in report.scores.items()
    }


def _plot_rows(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw exact match, the loss and BLEU, those available.

    Systems stand in the order of the first, and those without it last.
    """
    kinds = [kind for kind in ("exact", "loss", "bleu", "score") if kind in report.kinds]
    sign = 1 if kinds[0] == "loss" else -1
    main = _bars(report, kinds[0])[report.main_group]
    values = {label: sign * bar.value for label, bar in main.items()}
    rows = sorted(report.labels.values(), key=lambda label: values.get(label, math.inf))
    size = {"rows": len(rows), "stacked": len(kinds)}
    with new_figure(path, len(report.scores), **size) as (figure, panels):
        bars = ((kind, *group) for kind in kinds for group in _bars(report, kind).items())
        for axes, (kind, name, of_group) in zip(panels, bars):
            rows_of_bars(axes, rows, of_group)
            axes.set_title(f"{name}\n{report.sentences[name]:,} sentences", fontsize=9)
            axes.set_xlabel(_TITLES[kind], fontsize=8)
        figure.supxlabel(f"{report.length}\n{report.signature}", fontsize=8)


def _plot_bars(report: S2LScores, path: str | os.PathLike[str]) -> None:
    kinds = report.kinds
    unit = " sentences" if len(report.scores) <= _MOST_WITH_UNIT else ""
    groups = {name: f"{name}\n{report.sentences[name]:,}{unit}" for name in report.scores}
    with new_figure(path, len(kinds), len(report.labels) * len(groups)) as (figure, panels):
        for axes, kind in zip(panels, kinds):
            bars = {
                (groups[name], label): bar
                for name, of_group in _bars(report, kind).items()
                for label, bar in of_group.items()
            }
            grouped_bars(axes, list(groups.values()), list(report.labels.values()), bars)
            axes.set_ylabel(_TITLES[kind])
        panels[-1].set_xlabel(f"{report.length}\n{report.signature}", fontsize=8)
        legend(figure, panels[0])
