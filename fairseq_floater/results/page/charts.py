"""Lay out line charts; the page's template draws them as SVG, which follows its colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WIDTH, HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 10, 46
# From this ratio of largest to smallest value on, a linear axis would hide the small ones.
_LOGARITHMIC_FROM = 20.0
_MOST_TICKS = 6


class Point(NamedTuple):
    """A value at x, with its interval and the values of single seeds where there are any."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()


@dataclass(frozen=True)
class Line:
    """The points of a system (its number on the page) in order of x; ``label`` names it on hovering."""

    system: int
    label: str
    points: list[Point]


class Tick(NamedTuple):
    """A place on an axis, with one line of text or two."""

    place: float
    text: str
    below: str = ""


@dataclass
class Chart:
    """A chart in pixels.

    Attributes:
        lines: of each system its number, the ``d`` of its path, and its points.
    """

    title: str
    unit: str
    x_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Drawn] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM


class Drawn(NamedTuple):
    """A line in pixels; ``marks`` are its points (x, y, low, high, seeds, text)."""

    system: int
    label: str
    path: str
    marks: list[tuple[float, float, float | None, float | None, list[float], str]]


def line_chart(
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    x_title: str,
    x_ticks: Sequence[Tick] | None = None,
    linear: bool = False,
) -> Chart:
    """Lay out a chart; the y axis is logarithmic where values differ by orders of magnitude.

    Args:
        title: what is measured.
        unit: of y, for the axis.
        lines: at least one, with at least one point each.
        x_title: below the x axis.
        x_ticks: at whole numbers from 0, for categories; None: x is a number that begins at 0.
        linear: the y axis, whatever the values.
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

    chart = Chart(
        title,
        f"{unit}{scale}",
        x_title,
        [Tick(x_of(tick.place), *tick[1:]) for tick in x_ticks],
        y_ticks,
    )
    for line in lines:
        places = [(x_of(point.x), y_of(point.value)) for point in line.points]
        path = "M" + "L".join(f"{x:g},{y:g}" for x, y in places)
        marks = [
            (
                *place,
                None if point.low is None else y_of(point.low),
                None if point.high is None else y_of(point.high),
                [y_of(value) for value in point.seeds] if len(point.seeds) > 1 else [],
                f"{line.label}: {point.value:.3g}",
            )
            for place, point in zip(places, line.points)
        ]
        chart.lines.append(Drawn(line.system, line.label, path, marks))
    return chart


def _y_axis(
    points: Sequence[Point], linear: bool
) -> tuple[Callable[[float], float], list[Tick], str]:
    """Return the place of a value, the ticks, and what the axis says of its scale."""
    values = [v for p in points for v in (p.value, p.low, p.high, *p.seeds) if v is not None]
    low, high = min(values), max(values)
    is_log = not linear and low > 0 and high / low > _LOGARITHMIC_FROM
    change: Callable[[float], float] = math.log10 if is_log else float
    if not is_log:
        low, high = min(low, 0.0), high or 1.0
    ticks = _log_ticks(low, high) if is_log else _linear_ticks(low, high)
    bottom, top = change(low), change(max(high, ticks[-1]))

    def place(value: float) -> float:
        share = (change(value) - bottom) / (top - bottom)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    found = [Tick(place(value), f"{value:,g}") for value in ticks]
    return place, found, ", logarithmic" if is_log else ""


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= _MOST_TICKS else (1,)
    return [
        round(n * 10.0**power, 10)
        for power in powers
        for n in steps
        if low <= n * 10.0**power <= high
    ]
