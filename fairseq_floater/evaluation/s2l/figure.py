"""Draw scores by group of sentences: as bars for a few systems, as one row per system for many."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from fairseq_floater.evaluation.s2l.report import KINDS, S2LScores
from fairseq_floater.figures import (
    Bar,
    empty_figure,
    grouped_bars,
    legend,
    new_figure,
    rows_of_dots,
)

_MOST_BARS = 9  # systems whose bars can be told apart
_MOST_WITH_UNIT = 6  # groups whose names leave room for the word "sentences"
AS_TRAINED = "as trained"
_TITLES = {kind: title for kind, (title, _) in KINDS.items()} | {"loss": "loss, bits per token"}


def plot_s2l(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw the scores by bin of source length, or by test set.

    Values are means over seeds with the bootstrap interval of the mean; small dots are single seeds. The
    ending of ``path``, one of :data:`~fairseq_floater.figures.FORMATS`, decides the format.
    """
    plot = _plot_rows if len(report.labels) > _MOST_BARS else _plot_bars
    plot(report, path)


def _bars(report: S2LScores, kind: str) -> dict[str, dict[str, Bar]]:
    return {
        group: {
            report.labels[system]: Bar(mean.value, mean.interval, mean.per_seed)
            for system, score in by_system.items()
            if (mean := getattr(score, kind)) is not None
        }
        for group, by_system in report.scores.items()
    }


class Panel(NamedTuple):
    """One panel of :func:`plot_panels`: a bar for each label, and the words above and below it."""

    title: str
    measure: str
    bars: dict[str, Bar]


def _plot_rows(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw exact match, loss, BLEU and score, if available, with one row per system.

    Systems are sorted by the first measure; systems without it come last.
    """
    kinds = [kind for kind in ("exact", "loss", "bleu", "score") if kind in report.kinds]
    bars = {kind: _bars(report, kind) for kind in kinds}
    panels = [
        [
            Panel(f"{name}\n{report.sentences[name]:,} sentences", _TITLES[kind], of_group)
            for name, of_group in of_kind.items()
        ]
        for kind, of_kind in bars.items()
    ]
    sign = 1 if kinds[0] == "loss" else -1
    main = bars[kinds[0]][report.main_group]
    order = {label: sign * bar.value for label, bar in main.items()}
    caption = f"{report.length}\n{report.signature}"
    plot_panels(path, variant_rows(report.labels), panels, order, caption)


def plot_panels(
    path: str | os.PathLike[str],
    places: dict[str, tuple[str, str]],
    panels: Sequence[Sequence[Panel]],
    order: dict[str, float],
    caption: str,
) -> None:
    """Draw panels with one row per system, and with a colour for each variant of decoding.

    Args:
        path: the figure; its ending decides the format.
        places: the row and the variant of each label, as :func:`variant_rows` returns them.
        panels: line by line, as many in each.
        order: by row, the number that rows are sorted by; rows without one come last.
        caption: the words below all panels.
    """
    variants = list(dict.fromkeys(variant for _, variant in places.values()))
    rows = sorted(
        dict.fromkeys(system for system, _ in places.values()),
        key=lambda system: order.get(system, math.inf),
    )
    columns = len(panels[0])
    size = (3.5 + 1.6 * columns, len(panels) * (1.0 + 0.24 * len(rows)))
    with empty_figure(path, size) as figure:
        grid = figure.subplots(len(panels), columns, squeeze=False, sharey=True).flat
        for axes, panel in zip(grid, chain.from_iterable(panels)):
            series: dict[str, dict[str, Bar]] = {variant: {} for variant in variants}
            for label, bar in panel.bars.items():
                system, variant = places[label]
                series[variant][system] = bar
            rows_of_dots(axes, rows, series)
            axes.set_title(panel.title, fontsize=9)
            axes.set_xlabel(panel.measure, fontsize=8)
        figure.supxlabel(caption, fontsize=8)
        if len(variants) > 1:
            legend(figure, figure.axes[0], "upper", most=5)


def variant_rows(labels: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return for each label the system whose row it shares, and the name of the variant of decoding.

    A variant is named after its system: ``xl.cap_80`` is labelled ``xl, cap:80``.
    """
    lines = {}
    for name, label in labels.items():
        # A name may begin as another system's: floater-time-scale_1.5.
        of_label = (o for o in labels if label.startswith(f"{labels[o]}, "))
        system = next((labels[o] for o in of_label if name.startswith(f"{o}.")), label)
        lines[label] = system, label.removeprefix(f"{system}, ") if system != label else AS_TRAINED
    return lines


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
