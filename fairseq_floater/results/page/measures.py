"""Make the page's tables: measures by group, with intervals, ranks and comparisons; and costs of runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairseq_floater.results.page.comparison import ScoredComparison, ScoredSystem
from fairseq_floater.results.page.logs import RunLog
from fairseq_floater.results.runs import Run

# Keys of a comparison, the strictest first, and the test of each p-value.
P_VALUES = {
    "p_seeds_holm": "a t test over seeds and sentences, corrected (Holm) for the comparisons of a column",
    "p_value_holm": "the paired bootstrap over sentences, corrected (Holm) for the comparisons of a column",
    "p_value": "the paired bootstrap over sentences, not corrected for the number of comparisons",
}
# A difference is significant below this p.
SIGNIFICANT = 0.05


class Measure(NamedTuple):
    """A measure of `floater s2l score --json`; ``lower_wins`` is None if neither direction is better."""

    key: str
    title: str
    unit: str
    digits: int
    lower_wins: bool | None
    gain: str = ""


LOSS = Measure(
    "loss_bits_per_token",
    "Loss",
    "bits per token; of the reference under teacher forcing, lower is better",
    2,
    True,
    "loss_against_baseline",
)
EXACT = Measure(
    "exact_match",
    "Exact match",
    "share; of hypotheses that are the reference word for word, higher is better",
    3,
    False,
    "exact_match_against_baseline",
)
BLEU = Measure("bleu", "BLEU", "0 to 100; higher is better", 1, False, "bleu_against_baseline")
RANK = Measure("rank_by_loss", "Rank by loss", "below it, the ranks possible by chance", 0, True)
MEASURES = (
    EXACT,
    LOSS,
    BLEU,
    RANK,
    Measure(
        "length_ratio", "Length", "hypothesis / reference; below 1 hypotheses stop early", 2, None
    ),
    Measure("chrf", "chrF", "0 to 100; higher is better", 1, False),
    Measure("score", "Score", "of the metric given by `--scores`", 3, None),
    Measure("cut_off", "Cut off", "share; of hypotheses that reach the length limit", 2, None),
)


class Column(NamedTuple):
    """A column's head, a note below it, and whether its best values are the lowest."""

    name: str
    note: str = ""
    lower_first: bool = False


class TableCell(NamedTuple):
    """A cell: the value to sort by, text, interval, rank, mark, and the comparison behind the mark."""

    value: float | None
    text: str
    interval: str = ""
    rank: int | None = None
    mark: str = ""
    detail: str = ""


@dataclass
class Table:
    """A table with one row per system (its number), sorted by a measure on the main group.

    ``rule`` says when systems are told apart; it is empty if none are compared. ``main`` is the column that
    sorts the rows; it is empty if none does. ``is_shares``: the values are shares, which the page shades.
    """

    title: str
    unit: str
    columns: list[Column]
    rows: list[tuple[int, list[TableCell]]] = field(default_factory=list)
    rule: str = ""
    main: str = ""
    is_shares: bool = False


def measure_of(score: dict[str, Any] | None, measure: Measure) -> dict[str, Any] | None:
    """Return a measure of a score as ``{"value": ..., ...}``; None if the score lacks it."""
    value = (score or {}).get(measure.key)
    if measure is RANK and value:
        return {"value": value["place"], "low": value["best"], "high": value["worst"]}
    return value if value is None or isinstance(value, dict) else {"value": value}


def measure_table(comparison: ScoredComparison, measure: Measure) -> Table | None:
    """Return the table of a measure by group; None if no system has it."""
    lower = bool(measure.lower_wins)
    columns = [Column(group.name, f"n {group.sentences:,}", lower) for group in comparison.groups]
    table = Table(measure.title, measure.unit, columns, main=comparison.main_group)
    table.is_shares = measure is EXACT
    scores = [
        [system.scores.get(group.name, {}) for group in comparison.groups]
        for system in comparison.systems
    ]
    taken = [[measure_of(score, measure) for score in row] for row in scores]
    if not any(one for row in taken for one in row):
        return None
    by_group = [[one["value"] for one in column if one] for column in zip(*taken)]
    rules: dict[str, None] = {}
    for number, system in enumerate(comparison.systems):
        is_baseline = system.name == comparison.baseline
        gains = [None if is_baseline else score.get(measure.gain) for score in scores[number]]
        cells = [_cell(measure, *of_group) for of_group in zip(taken[number], by_group, gains)]
        table.rows.append((number, cells))
        rules |= {words: None for gain in gains if (words := p_of(gain)[1])}
    if rules:
        table.rule = f"p below {SIGNIFICANT} by {', or by '.join(rules)}"
    main = [group.name for group in comparison.groups].index(table.main)
    values = {number: cells[main].value for number, cells in table.rows}
    sign = 1 if lower else -1
    table.rows.sort(key=lambda row: (values[row[0]] is None, sign * (values[row[0]] or 0.0)))
    return table


def _cell(
    measure: Measure,
    taken: dict[str, Any] | None,
    column: Sequence[float],
    gain: dict[str, Any] | None,
) -> TableCell:
    """Return one system's cell in one group; ``column`` has the values of all systems, for the rank."""
    if taken is None:
        return TableCell(None, "-")
    value, digits = taken["value"], measure.digits
    text, interval, rank = f"{value:.{digits}f}", "", None
    if taken.get("spread") is not None:
        text += f" ±{taken['spread']:.{digits}f}"
    if taken.get("low") is not None:
        interval = f"{taken['low']:.{digits}f} to {taken['high']:.{digits}f}"
    if measure.lower_wins is not None and measure is not RANK:
        sign = 1 if measure.lower_wins else -1
        rank = 1 + sum(sign * other < sign * value for other in column)
    return TableCell(value, text, interval, rank, *_judged(gain, measure))


def _judged(gain: dict[str, Any] | None, measure: Measure) -> tuple[str, str]:
    """Return the mark of a comparison with the baseline, and the comparison in words."""
    p_value, _ = p_of(gain)
    if gain is None or p_value is None:
        return "", ""
    words = f"{gain['difference']:+.{measure.digits}f}, p {p_value:.3f}"
    if p_value >= SIGNIFICANT:
        return "alike", words
    return ("better" if (gain["difference"] < 0) == measure.lower_wins else "worse"), words


def p_of(gain: dict[str, Any] | None) -> tuple[float | None, str]:
    """Return the strictest p-value of a comparison, and its test."""
    known = (
        (gain[key], words) for key, words in P_VALUES.items() if gain and gain.get(key) is not None
    )
    return next(known, (None, ""))


_COSTS: tuple[tuple[Column, Callable[[Run, RunLog], float | None]], ...] = (
    (Column("parameters", "in all", True), lambda run, _: run.average.get("parameters")),
    (Column("parameters", "of the encoder", True), lambda run, _: run.parameters),
    (Column("updates", "of the last stage"), lambda _, log: max(log.losses, default=None)),
    (Column("training", "seconds", True), lambda run, _: run.average.get("training_seconds")),
    (Column("training", "target tokens a second"), lambda _, log: log.words_per_second),
    (Column("translation", "sentences a second"), lambda _, log: log.sentences_per_second),
    (Column("GPU memory", "GiB left free, at least"), lambda _, log: log.free_memory),
)


def cost_table(comparison: ScoredComparison) -> Table:
    """Return sizes and speeds, means over seeds; columns that no run fills are left out."""
    rows = [[_mean_cost(system, cost) for _, cost in _COSTS] for system in comparison.systems]
    used = [i for i in range(len(_COSTS)) if any(row[i] is not None for row in rows)]
    table = Table("Sizes and speeds", "means over seeds", [_COSTS[i][0] for i in used])
    for number, row in enumerate(rows):
        cells = [
            TableCell(v, "-" if v is None else f"{v:,.{int(v < 100 and v % 1 > 0)}f}")
            for v in (row[i] for i in used)
        ]
        table.rows.append((number, cells))
    return table


def _mean_cost(system: ScoredSystem, cost: Callable[[Run, RunLog], float | None]) -> float | None:
    costs = [cost(run, system.logs[seed]) for seed, run in system.runs.items()]
    known = [value for value in costs if value is not None]
    return statistics.fmean(known) if known else None
