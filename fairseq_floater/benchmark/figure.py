"""Draw a benchmark as a figure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fairseq_floater.benchmark.contestants import BASELINE
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.benchmark.tables import BenchmarkResult
from fairseq_floater.benchmark.timing import Row
from fairseq_floater.errors import UsageError
from fairseq_floater.figures import COLOURS, Bar, checked_format, grouped_bars, legend, new_figure

_DRAWN = ("update", "generation", "memory", "growth")
_MARKERS = "osD^"


def check_plot(settings: Settings, path: str | os.PathLike[str]) -> None:
    """Raise UsageError before anything is measured where nothing could be drawn."""
    checked_format(path)
    if not set(_DRAWN) & set(settings.parts):
        raise UsageError(f"`--plot` draws one of the parts {', '.join(_DRAWN)}, but none is asked.")


def plot_benchmark(result: BenchmarkResult, path: str | os.PathLike[str]) -> None:
    """Draw ratios to fairseq's Transformer with quartiles, and time by positions.

    Writes the format of ``path``'s ending.
    """
    bars, tables = _bars(result), result.growth.get("tables")
    with new_figure(path, bool(bars) + bool(tables), 2 * len(bars)) as (figure, panels):
        if bars:
            _draw_bars(figure, panels[0], bars)
        if tables:
            _draw_tables(panels[-1], tables, result.growth["exponents"])


def _bars(result: BenchmarkResult) -> dict[tuple[str, str], Bar]:
    """Return bars by group and contestant; the baseline, 1 by definition, is drawn as a line."""
    rows = [("update", row) for row in result.update]
    rows += [(f"translation,\n{row['sentences']} at once", row) for row in result.generation]
    rows += [("memory\nof an update", row) for row in result.memory]
    return {
        (group, row["contestant"]): Bar(
            row["ratio"], (row["ratio_low"], row["ratio_high"]) if "ratio_low" in row else None
        )
        for group, row in rows
        if row["contestant"] != BASELINE
    }


def _draw_bars(figure: Any, axes: Any, bars: dict[tuple[str, str], Bar]) -> None:
    groups = list(dict.fromkeys(group for group, _ in bars))
    grouped_bars(axes, groups, list(dict.fromkeys(name for _, name in bars)), bars)
    axes.axhline(1.0, color="#333333", linewidth=1.0, linestyle="--")
    axes.set_ylabel("beside fairseq's Transformer\n(median, quartiles)")
    legend(figure, axes)


def _draw_tables(axes: Any, rows: Sequence[Row], exponents: dict[str, float]) -> None:
    for i, name in enumerate(dict.fromkeys(row["contestant"] for row in rows)):
        own = [row for row in rows if row["contestant"] == name]
        fitted = f": time ~ positions$^{{{exponents[name]:.2f}}}$" if name in exponents else ""
        style = {"color": COLOURS[i], "marker": _MARKERS[i], "label": f"{name}{fitted}"}
        axes.loglog([r["positions"] for r in own], [r["seconds"] for r in own], **style)
    ticks = sorted({row["positions"] for row in rows})
    axes.set_xticks(ticks, [f"{number:,}" for number in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("positions")
    axes.set_ylabel("seconds of the position table,\nforward and backward")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
