"""Draw figures in Okabe and Ito's colours, which stay distinct for colour-blind readers and in grey."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.files import write_whole

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
FORMATS = ("png", "svg", "pdf")
_SEEDS = {"s": 9, "facecolors": "white", "edgecolors": "black", "linewidths": 0.6, "zorder": 3}
# Characters of a name. Beside a longer one, a figure of few bars has no room for a second name.
LONG_LABEL = 32


@dataclass(frozen=True)
class Bar:
    """A value, its interval, if any, and the values of single seeds."""

    value: float
    interval: tuple[float, float] | None = None
    seeds: Sequence[float] = ()


def quieten_matplotlib() -> None:
    """Hide the log messages of matplotlib's font search and of Pillow, its reader of PNG files.

    They would be shown because fairseq lowers the level of the root logger.
    """
    for package in ("matplotlib", "PIL"):
        logging.getLogger(package).setLevel(logging.WARNING)


def checked_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a figure from its ending; raises UsageError if it is not in FORMATS."""
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise UsageError(f"`{path}` must end in one of {', '.join(FORMATS)}.")
    return suffix


@contextmanager
def new_figure(
    path: str | os.PathLike[str], panels: int, bars: int
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Make a figure of panels below each other, and write it as :func:`empty_figure` does.

    Yields the figure and the axes of its panels. ``bars``, the largest number of bars in a panel, sets the
    width.
    """
    with empty_figure(path, (min(max(7.0, 0.4 * bars), 14.0), 1.2 + 3.4 * panels)) as figure:
        yield figure, list(figure.subplots(panels, squeeze=False).flat)


@contextmanager
def empty_figure(
    path: str | os.PathLike[str],
    size: tuple[float, float],
    dpi: int = 160,
    settings: dict[str, Any] | None = None,
) -> Iterator[Any]:
    """Make a figure, and write it to ``path`` at the end, whole or not at all.

    ``path`` is a png, svg or pdf by its ending. ``size`` is width and height in inches. ``settings`` are
    matplotlib's rcParams. Text is drawn as it is: a label may have dollar signs.
    """
    suffix = checked_format(path)
    quieten_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False, **(settings or {})}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        write_whole(path, lambda temporary: figure.savefig(temporary, dpi=dpi, format=suffix))


def grouped_bars(
    axes: Any, groups: Sequence[str], series: Sequence[str], bars: dict[tuple[str, str], Bar]
) -> None:
    """Draw ``bars[group, series]`` side by side in each group; a missing one leaves its place empty."""
    width = 0.8 / len(series)
    for i, name in enumerate(series):
        shift = (i - (len(series) - 1) / 2) * width
        placed = {
            j + shift: bars[group, name] for j, group in enumerate(groups) if (group, name) in bars
        }
        axes.bar(
            [*placed],
            [bar.value for bar in placed.values()],
            width * 0.9,
            color=COLOURS[i % len(COLOURS)],
            hatch=_HATCHES[(i + i // len(COLOURS)) % len(_HATCHES)],
            edgecolor="white",
            label=name,
        )
        for x, bar in placed.items():
            if bar.interval is not None:
                low, high = bar.interval
                reach = [[max(bar.value - low, 0)], [max(high - bar.value, 0)]]
                style = {"elinewidth": 1.0, "capsize": 2.5, "ecolor": "#333333", "fmt": "none"}
                axes.errorbar([x], [bar.value], yerr=reach, **style)
            if len(bar.seeds) > 1:
                axes.scatter([x] * len(bar.seeds), bar.seeds, **_SEEDS)
    axes.set_xticks(range(len(groups)), groups)
    if min((bar.value for bar in bars.values()), default=0) >= 0:
        axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.grid(True, linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)


def rows_of_dots(axes: Any, rows: Sequence[str], series: dict[str, dict[str, Bar]]) -> None:
    """Draw each row as a line with the dot, interval and seeds of each series; the first row is on top.

    ``rows`` are the names shown at the left. ``series`` holds bars by row; a series may lack some rows.
    """
    for i, (label, bars) in enumerate(series.items()):
        placed = [(y, bars[name]) for y, name in enumerate(rows) if name in bars]
        for y, bar in placed:
            if bar.interval is not None:
                axes.plot(bar.interval, [y, y], color="#777777", linewidth=1.2)
            if len(bar.seeds) > 1:
                axes.scatter(bar.seeds, [y] * len(bar.seeds), **_SEEDS)
        style = {"color": COLOURS[i % len(COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
        values = [bar.value for _, bar in placed]
        axes.scatter(values, [y for y, _ in placed], s=16, zorder=4, label=label, **style)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)


def legend(figure: Any, axes: Any, position: str = "lower", most: int = 2) -> None:
    """Add a legend of at most ``most`` columns outside the axes; inside, it could cover a bar."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:  # matplotlib leaves out labels that begin with an underscore
        return
    columns = 1 if max(map(len, labels)) > LONG_LABEL else most
    figure.legend(handles, labels, loc=f"outside {position} center", ncols=columns, frameon=False)
