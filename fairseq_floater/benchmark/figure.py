"""Draw a benchmark as a figure."""

from __future__ import annotations

import os
from typing import Any

from fairseq_floater.benchmark.contestants import BASELINE
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.benchmark.tables import BenchmarkResult
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
    """Draw ratios to fairseq's Transformer with quartiles, and growth by positions and by tokens.

    Writes the format of ``path``'s ending.
    """
    bars, tables = _bars(result), result.growth.get("tables")
    updates = result.growth.get("updates")
    panels = [draw for draw, found in ((_draw_bars, bars), (_draw_tables, tables)) if found]
    panels += [_draw_updates] if updates else []
    with new_figure(path, len(panels), 2 * len(bars)) as (figure, panel_axes):
        for draw, axes in zip(panels, panel_axes):
            draw(figure, axes, result)
            axes.spines[["top", "right"]].set_visible(False)


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


def _draw_bars(figure: Any, axes: Any, result: BenchmarkResult) -> None:
    bars = _bars(result)
    groups = list(dict.fromkeys(group for group, _ in bars))
    grouped_bars(axes, groups, list(dict.fromkeys(name for _, name in bars)), bars)
    _line_of_the_baseline(axes)
    axes.set_ylabel("beside fairseq's Transformer\n(median, quartiles)")
    legend(figure, axes)


def _draw_tables(figure: Any, axes: Any, result: BenchmarkResult) -> None:
    rows, fitted = result.growth["tables"], result.growth["exponents"]
    for i, name in enumerate(dict.fromkeys(row["contestant"] for row in rows)):
        own = [row for row in rows if row["contestant"] == name]
        grown = f": time ~ positions$^{{{fitted[name]:.2f}}}$" if name in fitted else ""
        style = {"color": COLOURS[i], "marker": _MARKERS[i], "label": f"{name}{grown}"}
        axes.loglog([r["positions"] for r in own], [r["seconds"] for r in own], **style)
    _number_ticks(axes, [row["positions"] for row in rows])
    axes.set_xlabel("positions")
    axes.set_ylabel("seconds of the position table,\nforward and backward")
    axes.legend(frameon=False)


def _draw_updates(figure: Any, axes: Any, result: BenchmarkResult) -> None:
    rows = [row for row in result.growth["updates"] if row["contestant"] != BASELINE]
    for i, name in enumerate(dict.fromkeys(row["contestant"] for row in rows)):
        own = [row for row in rows if row["contestant"] == name]
        ratios = [row["ratio"] for row in own]
        reach = [
            [row["ratio"] - row["ratio_low"] for row in own],
            [row["ratio_high"] - row["ratio"] for row in own],
        ]
        style = {"color": COLOURS[i], "marker": _MARKERS[i], "label": name, "capsize": 2.5}
        axes.errorbar([row["max_tokens"] for row in own], ratios, yerr=reach, **style)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    _number_ticks(axes, [row["max_tokens"] for row in rows])
    _line_of_the_baseline(axes)
    axes.set_xlabel("tokens of an update")
    axes.set_ylabel("update beside\nfairseq's Transformer")
    axes.legend(frameon=False)


def _number_ticks(axes: Any, numbers: list[int]) -> None:
    """Label a logarithmic axis with the numbers themselves."""
    ticks = sorted(set(numbers))
    axes.set_xticks(ticks, [f"{number:,}" for number in ticks])
    axes.set_xticks([], minor=True)


def _line_of_the_baseline(axes: Any) -> None:
    axes.axhline(1.0, color="#333333", linewidth=1.0, linestyle="--")
