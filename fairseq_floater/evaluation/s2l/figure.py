"""Draw scores by group of sentences: bars for a few systems, a line each for many."""

from __future__ import annotations

import os

from fairseq_floater.evaluation.s2l.report import S2LScores
from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure, rows_of_bars

_MOST_BARS = 9  # systems whose bars can be told apart


def plot_s2l(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw the scores by bin of source length, or by test set.

    Values are means over seeds with the bootstrap interval of the mean, small dots are seeds. The ending
    of ``path``, one of :data:`~fairseq_floater.figures.FORMATS`, chooses the format.
    """
    if len(report.labels) > _MOST_BARS:
        _plot_rows(report, path)
    else:
        _plot_bars(report, path)


def _plot_rows(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw the loss, or BLEU where there is none, a panel a group, the best system of the main one first."""
    title, attribute, sign = ("loss, bits per token", "loss", 1)
    if not report.has_loss:
        title, attribute, sign = ("BLEU", "bleu", -1)
    bins = {
        name: {
            report.labels[system]: Bar(measure.value, measure.interval, measure.per_seed)
            for system, found in by_system.items()
            if (measure := getattr(found, attribute)) is not None
        }
        for name, by_system in report.scores.items()
    }
    main = bins[report.main_group]
    rows = sorted(main, key=lambda label: sign * main[label].value)
    with new_figure(path, len(bins), rows=len(rows)) as (figure, panels):
        for axes, (name, bars) in zip(panels, bins.items()):
            rows_of_bars(axes, rows, bars)
            axes.set_title(f"{name}\n{report.sentences[name]:,} sentences", fontsize=9)
        figure.supxlabel(f"{title}; {report.length}\n{report.signature}", fontsize=8)


def _plot_bars(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw BLEU, and below it the teacher-forced loss where there is one, by group."""
    panels = (
        {"BLEU": "bleu", "loss, bits per token": "loss"} if report.has_loss else {"BLEU": "bleu"}
    )
    groups = {name: f"{name}\n{report.sentences[name]:,} sentences" for name in report.scores}
    with new_figure(path, len(panels), len(report.labels) * len(groups)) as (figure, panel_axes):
        for axes, (title, attribute) in zip(panel_axes, panels.items()):
            bars = {
                (groups[name], report.labels[system]): Bar(
                    measure.value, measure.interval, measure.per_seed
                )
                for name, by_system in report.scores.items()
                for system, found in by_system.items()
                if (measure := getattr(found, attribute)) is not None
            }
            grouped_bars(axes, list(groups.values()), list(report.labels.values()), bars)
            axes.set_ylabel(title)
        panel_axes[-1].set_xlabel(f"{report.length}\n{report.signature}", fontsize=8)
        legend(figure, panel_axes[0])
