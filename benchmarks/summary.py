"""Put what all parts found into one table: a row for each contestant, a column for each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants import BASELINE
from benchmarks.timing import Row
from fairseq_floater.records import markdown_table

# The parts whose rows are ratios to the baseline, in the order of columns. For each part: the panel and
# the series of a row, and the keys that order its columns.
SUMMARISED: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "update": ("update", "", ()),
    "memory": ("memory", "", ()),
    "launches": ("launches", "", ()),
    "generation": (
        "translation, {sentences:,} at once",
        "{vocabulary:,} words",
        ("sentences", "vocabulary"),
    ),
    "step": ("step", "position {position:,}", ("position",)),
}
SUMMARY_REMARK = (
    "fairseq's row is in seconds, bytes and kernels; the others are ratios to it. The floor is what "
    "reading float32 weights once, or the products alone, would take at the machine's rates: no float32 "
    "ratio can be below it."
)


@dataclass(frozen=True)
class SummaryColumn:
    """One measured quantity of every contestant.

    Attributes:
        panel: the panel's title in a figure, and the first words of the column's head.
        series: what distinguishes the column from others of its panel.
        baseline: fairseq's own value, as text.
        rows: by contestant, the baseline included.
        floor: ratio of the floor to the baseline; None if there is none.
    """

    panel: str
    series: str
    baseline: str
    rows: dict[str, Row]
    floor: float | None


def format_seconds(value: float) -> str:
    """Format a time with three digits, in seconds or milliseconds."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def summary_columns(parts: Mapping[str, Sequence[Row]]) -> list[SummaryColumn]:
    """Return a column for every measurement of ``parts`` (rows by part) that has a ratio."""
    columns = []
    for part, (panel, series, keys) in SUMMARISED.items():
        tables: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in parts.get(part, ()):
            tables.setdefault(tuple(row[key] for key in keys), {})[row["contestant"]] = row
        for _, rows in sorted(tables.items(), key=lambda item: item[0]):
            base = rows[BASELINE]
            floor = 1 / base["floor_ratio"] if "floor_ratio" in base else None
            named = panel.format(**base), series.format(**base)
            columns.append(SummaryColumn(*named, _absolute(base), rows, floor))
    return columns


def summary_table(columns: Sequence[SummaryColumn]) -> str:
    """Format columns as one table, fairseq first and the floor last; empty if there are none."""
    names = dict.fromkeys(name for column in columns for name in column.rows if name != BASELINE)
    if not names:
        return ""
    heads = ["", *(", ".join(filter(None, (c.panel, c.series))) for c in columns)]
    lines = [[f"`{BASELINE}`", *(c.baseline for c in columns)]]
    for name in names:
        ratios = (c.rows[name]["ratio"] if name in c.rows else None for c in columns)
        lines.append([f"`{name}`", *map(_ratio, ratios)])
    lines.append(["the floor", *(_ratio(c.floor) for c in columns)])
    return "\n".join(markdown_table(heads, lines))


def _absolute(row: Row) -> str:
    if "kernels" in row:
        return f"{row['kernels']:,}"
    return f"{row['bytes'] / 2**20:,.0f} MiB" if "bytes" in row else format_seconds(row["seconds"])


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
