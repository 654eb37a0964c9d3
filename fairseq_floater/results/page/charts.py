"""Lay out line charts; the page's template draws them as SVG in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.ticker import LogLocator, MaxNLocator

WIDTH, HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 10, 46
# Above this ratio of largest to smallest value, a linear axis would hide the small ones.
_LOGARITHMIC_FROM = 20.0
_MOST_TICKS = 6


class Point(NamedTuple):
    """A value at x, with its interval and the values of single seeds, if any.

    In a :class:`Chart` all numbers are in pixels, and ``text`` shows the value on hovering.
    """

    x: float
    value: float
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    text: str = ""


class Line(NamedTuple):
    """The points of a system (its number on the page) in order of x; ``label`` names it on hovering."""

    system: int
    label: str
    points: list[Point]

    @property
    def path(self) -> str:
        """Return the ``d`` of an SVG path through the points."""
        return "M" + "L".join(f"{point.x:g},{point.value:g}" for point in self.points)


class Tick(NamedTuple):
    """A position on an axis, with one line of text or two."""

    position: float
    text: str
    below: str = ""


@dataclass
class Chart:
    """A chart in pixels."""

    title: str
    unit: str
    x_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM


def line_chart(
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    x_title: str,
    x_ticks: Sequence[Tick] | None = None,
    linear: bool = False,
) -> Chart:
    """Lay out a chart; the y axis is logarithmic if values differ by orders of magnitude.

    Args:
        x_ticks: categories, at x = 0, 1, 2, ...; None: x is a number, and its axis begins at 0.
        linear: make the y axis linear, whatever the values.
    """
    points = [point for line in lines for point in line.points]
    y_of, y_ticks, scale = _y_axis(points, linear)
    if x_ticks is None:
        ticks = _linear_ticks(0, max(point.x for point in points) or 1.0)
        x_ticks, span = [Tick(value, f"{value:,g}") for value in ticks], (0.0, ticks[-1])
    else:
        span = (-0.5, len(x_ticks) - 0.5)

    def x_of(x: float) -> float:
        return round(_LEFT + (x - span[0]) / (span[1] - span[0]) * (WIDTH - _LEFT - _RIGHT), 1)

    def in_pixels(label: str, point: Point) -> Point:
        x, value, low, high, seeds, _ = point
        return Point(
            x_of(x),
            y_of(value),
            None if low is None else y_of(low),
            None if high is None else y_of(high),
            [y_of(seed) for seed in seeds] if len(seeds) > 1 else [],
            f"{label}: {value:.3g}",
        )

    drawn = [
        line._replace(points=[in_pixels(line.label, point) for point in line.points])
        for line in lines
    ]
    x_ticks = [Tick(x_of(tick.position), *tick[1:]) for tick in x_ticks]
    return Chart(title, f"{unit}{scale}", x_title, x_ticks, y_ticks, drawn)


def _y_axis(
    points: Sequence[Point], linear: bool
) -> tuple[Callable[[float], float], list[Tick], str]:
    """Return a function from value to pixels, the ticks, and a note on the scale for the unit."""
    values = [v for p in points for v in (p.value, p.low, p.high, *p.seeds) if v is not None]
    low, high = min(values), max(values)
    is_log = not linear and low > 0 and high / low > _LOGARITHMIC_FROM
    change: Callable[[float], float] = math.log10 if is_log else float
    if is_log:
        powers = math.ceil(change(high)) - math.floor(change(low)) + 1
        locator = LogLocator(subs=(1, 2, 5) if powers <= _MOST_TICKS else (1,))
        ticks = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
    else:
        low, high = min(low, 0.0), high or 1.0
        ticks = _linear_ticks(low, high)
    bottom, top = change(low), change(max(high, ticks[-1]))

    def y_of(value: float) -> float:
        share = (change(value) - bottom) / (top - bottom)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    texts = [Tick(y_of(value), f"{value:,g}") for value in ticks]
    return y_of, texts, ", logarithmic" if is_log else ""


def _linear_ticks(low: float, high: float) -> list[float]:
    locator = MaxNLocator(_MOST_TICKS, steps=[1, 2, 5, 10])
    return [float(tick) for tick in locator.tick_values(low, high)]
