"""Draw scores by group of sentences: as bars for a few systems, as one row per system for many."""

from __future__ import annotations

import math
import os

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


def _plot_rows(report: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw exact match, loss, BLEU and score, if available, with one row per system.

    Variants of decoding, such as told length, are in the row of their system in other colours. Systems
    are sorted by the first measure; systems without it come last.
    """
    kinds = [kind for kind in ("exact", "loss", "bleu", "score") if kind in report.kinds]
    lines = _lines(report.labels)
    variants = list(dict.fromkeys(variant for _, variant in lines.values()))
    sign = 1 if kinds[0] == "loss" else -1
    main = _bars(report, kinds[0])[report.main_group]
    values = {lines[label]: sign * bar.value for label, bar in main.items()}
    rows = sorted(
        dict.fromkeys(system for system, _ in lines.values()),
        key=lambda system: values.get((system, AS_TRAINED), math.inf),
    )
    columns = len(report.scores)
    size = (3.5 + 1.6 * columns, len(kinds) * (1.0 + 0.24 * len(rows)))
    with empty_figure(path, size) as figure:
        panels = figure.subplots(len(kinds), columns, squeeze=False, sharey=True).flat
        bars = ((kind, *group) for kind in kinds for group in _bars(report, kind).items())
        for axes, (kind, name, of_group) in zip(panels, bars):
            series = {
                variant: {
                    lines[label][0]: b
                    for label, b in of_group.items()
                    if lines[label][1] == variant
                }
                for variant in variants
            }
            rows_of_dots(axes, rows, series)
            axes.set_title(f"{name}\n{report.sentences[name]:,} sentences", fontsize=9)
            axes.set_xlabel(_TITLES[kind], fontsize=8)
        figure.supxlabel(f"{report.length}\n{report.signature}", fontsize=8)
        if len(variants) > 1:
            legend(figure, figure.axes[0], "upper", most=5)


def _lines(labels: dict[str, str]) -> dict[str, tuple[str, str]]:
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
