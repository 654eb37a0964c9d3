"""Draw a benchmark as a figure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import BASELINE
from benchmarks.settings import Settings
from benchmarks.summary import SUMMARISED, SummaryColumn
from benchmarks.tables import BenchmarkResult
from benchmarks.timing import Row
from fairseq_floater.errors import UsageError, say
from fairseq_floater.figures import COLOURS, checked_format, empty_figure

_DRAWN = (*SUMMARISED, "growth")
_MARKERS = "osD^"


def check_plot(settings: Settings, path: str | os.PathLike[str]) -> None:
    """Raise UsageError, before anything is measured, if nothing could be drawn."""
    checked_format(path)
    if not set(_DRAWN) & set(settings.parts):
        raise UsageError(f"`--plot` draws the parts {', '.join(_DRAWN)}, but --parts has none.")


def plot_benchmark(result: BenchmarkResult, path: str | os.PathLike[str]) -> None:
    """Draw ratios to fairseq's Transformer with quartiles, and time by positions.

    The suffix of ``path`` determines the format.
    """
    panels: dict[str, list[SummaryColumn]] = {}
    for column in result.columns():
        panels.setdefault(column.panel, []).append(column)
    names = list(dict.fromkeys(n for own in panels.values() for c in own for n in c.rows))
    names = [name for name in names if name != BASELINE]
    tables = result.growth.get("tables")
    heights = ([1.6 + 0.26 * len(names)] if panels else []) + ([4.6] if tables else [])
    if not heights:
        say(f"Nothing was measured to draw: {os.fspath(path)} is not written.")
        return
    width = max(7.0, 1.6 + 1.9 * len(panels))
    with empty_figure(path, (width, sum(heights))) as figure:
        parts = iter(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        if panels:
            _draw_ratios(next(parts), panels, names)
        if tables:
            _draw_tables(next(parts).subplots(), tables, result.growth["exponents"])


def _draw_ratios(figure: Any, panels: dict[str, list[SummaryColumn]], names: list[str]) -> None:
    """Draw panels side by side, with a row for each contestant and a dot for each ratio."""
    for axes, (title, columns) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items()
    ):
        axes.axvline(1.0, color="#333333", linewidth=1.0, linestyle="--")
        for i, column in enumerate(columns):
            colour = COLOURS[i % len(COLOURS)]
            shift = (i - (len(columns) - 1) / 2) * 0.6 / len(columns)
            if column.floor is not None:
                axes.axvline(column.floor, color=colour, linewidth=1.0, linestyle=":")
            marks = [(names.index(n) + shift, r) for n, r in column.rows.items() if n in names]
            axes.errorbar(
                [row["ratio"] for _, row in marks],
                [place for place, _ in marks],
                xerr=list(zip(*(_reach(row) for _, row in marks))),
                fmt=_MARKERS[i % len(_MARKERS)],
                markersize=3.5,
                elinewidth=1.0,
                color=colour,
                label=column.series or None,
            )
        _format_axes(axes, title, len(columns) > 1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel("beside fairseq's Transformer: median, quartiles; dotted: the floor", size=9)


def _reach(row: Row) -> tuple[float, float]:
    """Return how far the quartiles are from the ratio, below and above."""
    low, high = row.get("ratio_low", row["ratio"]), row.get("ratio_high", row["ratio"])
    return max(row["ratio"] - low, 0.0), max(high - row["ratio"], 0.0)


def _format_axes(axes: Any, title: str, has_series: bool) -> None:
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator
    from matplotlib.transforms import offset_copy

    axes.set_title(title.replace(", ", ",\n"), fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%.4g"))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.grid(True, linewidth=0.4, color="#cccccc")
    if has_series:
        below = offset_copy(axes.transAxes, axes.figure, y=-18, units="points")
        style = {"fontsize": 7, "frameon": False, "borderaxespad": 0.0}
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, **style)


def _draw_tables(axes: Any, rows: Sequence[Row], exponents: dict[str, float]) -> None:
    for i, name in enumerate(dict.fromkeys(row["contestant"] for row in rows)):
        of_name = [row for row in rows if row["contestant"] == name]
        fitted = f": time ~ positions^{exponents[name]:.2f}" if name in exponents else ""
        style = {"color": COLOURS[i % len(COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
        style["label"] = f"{name}{fitted}"
        axes.loglog([r["positions"] for r in of_name], [r["seconds"] for r in of_name], **style)
    ticks = sorted({row["positions"] for row in rows})
    axes.set_xticks(ticks, [f"{number:,}" for number in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("positions")
    axes.set_ylabel("seconds of the position table,\nforward and backward")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
