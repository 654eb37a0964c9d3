"""Figures. Colours are Okabe and Ito's, told apart by colour-blind eyes and in grey print."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.score_report import Measure, S2LScores
from fairseq_floater.files import write_whole
from fairseq_floater.results.table import Results, confidence_interval

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Bar:
    """A value, its interval where there is one, and the values of single seeds."""

    value: float
    interval: tuple[float, float] | None = None
    seeds: Sequence[float] = field(default_factory=tuple)


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


def plot_s2l(scores: S2LScores, path: str | os.PathLike[str]) -> None:
    """BLEU, and below it the teacher-forced loss where there is one, by bin of source length.

    Bars are means over seeds with the bootstrap interval of the mean, dots the seeds. Writes the
    format of ``path``'s ending, one of :data:`FORMATS`.
    """
    panels = {"BLEU": "bleu", "loss, bits a token": "loss"}
    if not any(f.loss for found in scores.scores.values() for f in found.values()):
        del panels["loss, bits a token"]
    groups = {name: f"{name}\n{scores.sentences[name]:,} sentences" for name in scores.bins}
    with new_figure(path, len(panels), len(scores.systems) * len(groups)) as (figure, panel_axes):
        for axes, (title, attribute) in zip(panel_axes, panels.items()):
            bars = {
                (groups[name], scores.labels[system]): _bar_of(getattr(found, attribute))
                for name, by_system in scores.scores.items()
                for system, found in by_system.items()
                if getattr(found, attribute) is not None
            }
            grouped_bars(axes, list(groups.values()), list(scores.labels.values()), bars)
            axes.set_ylabel(title)
        panel_axes[-1].set_xlabel(f"{scores.length}\n{scores.signature}", fontsize=8)
        legend(figure, panel_axes[0])


def quieten_matplotlib() -> None:
    """fairseq lowers the root logger's level, and matplotlib's search for fonts is long-winded."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)


def checked_format(path: str | os.PathLike[str]) -> str:
    """The format of a figure by its ending; raises UsageError for one that is not written."""
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise UsageError(f"`{path}` must end in one of {', '.join(FORMATS)}.")
    return suffix


@contextmanager
def new_figure(
    path: str | os.PathLike[str], panels: int, bars: int
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """A figure of panels above each other, written to ``path`` at the end, whole or not at all."""
    suffix = checked_format(path)
    quieten_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    width = min(max(7.0, 0.4 * bars), 14.0)
    figure, grid = pyplot.subplots(panels, 1, figsize=(width, 1.2 + 3.4 * panels), squeeze=False)
    figure.set_layout_engine("constrained")
    try:
        yield figure, [row[0] for row in grid]
        write_whole(path, lambda temporary: figure.savefig(temporary, dpi=160, format=suffix))
    finally:
        pyplot.close(figure)


def grouped_bars(
    axes: Any, groups: Sequence[str], series: Sequence[str], bars: dict[tuple[str, str], Bar]
) -> None:
    """Draw ``bars[group, series]`` side by side in each group; a missing one leaves its place empty."""
    width = 0.8 / len(series)
    for i, name in enumerate(series):
        found = [(j, bars[group, name]) for j, group in enumerate(groups) if (group, name) in bars]
        places = [j + (i - (len(series) - 1) / 2) * width for j, _ in found]
        axes.bar(
            places,
            [bar.value for _, bar in found],
            width * 0.9,
            color=COLOURS[i % len(COLOURS)],
            hatch=_HATCHES[(i + i // len(COLOURS)) % len(_HATCHES)],
            edgecolor="white",
            label=name,
        )
        for x, (_, bar) in zip(places, found):
            if bar.interval is not None:
                reach = [
                    [max(bar.value - bar.interval[0], 0)],
                    [max(bar.interval[1] - bar.value, 0)],
                ]
                style = {"elinewidth": 1.0, "capsize": 2.5, "ecolor": "#333333", "fmt": "none"}
                axes.errorbar([x], [bar.value], yerr=reach, **style)
            if len(bar.seeds) > 1:
                dots = {"s": 9, "facecolors": "white", "edgecolors": "black", "linewidths": 0.6}
                axes.scatter([x] * len(bar.seeds), bar.seeds, zorder=3, **dots)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.grid(True, linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)


def legend(figure: Any, axes: Any) -> None:
    # Below the axes: any place inside would cover a bar in some experiment.
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)


def _bar_of(measure: Measure) -> Bar:
    interval = None
    if measure.low is not None and measure.high is not None:
        interval = (measure.low, measure.high)
    return Bar(measure.value, interval, measure.per_seed)


def _interval_of(score: dict[str, Any]) -> tuple[float, float] | None:
    return confidence_interval(score["bleu"])
