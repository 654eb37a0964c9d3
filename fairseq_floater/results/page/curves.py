"""Draw a comparison's curves: measures by length or test set, and the loss in training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fairseq_floater.evaluation.s2l.report import ALL
from fairseq_floater.results.page.charts import Chart, Line, Point, Tick, line_chart
from fairseq_floater.results.page.comparison import Group, ScoredComparison
from fairseq_floater.results.page.measures import BLEU, EXACT, LOSS, Measure, measure_of


def curves_by_length(comparison: ScoredComparison) -> Iterator[Chart]:
    """Yield the charts of exact match, loss and BLEU, if a system has them, in this order."""
    by, axis, whole = "source length", "source length in tokens", {ALL}
    parts: dict[str, str] = {}
    if not comparison.is_short_to_long:
        by = axis = "test set"
        named = [g.name for g in comparison.groups if re.search(r", \d", g.name)]
        parts = {name: name.partition(", ")[2] for name in named}
        whole = {name.partition(",")[0] for name in named}
    groups = [group for group in comparison.groups if group.name not in whole]
    groups.sort(key=lambda group: group.name in parts)  # the trained lengths come first

    def texts(group: Group) -> tuple[str, str]:
        if group.name in parts:
            return parts[group.name], ""
        # Parts leave no room for means, nor beside them for the name of a whole test set.
        return ("", group.name) if parts else (group.name, group.mean)

    ticks = [Tick(i, *texts(group)) for i, group in enumerate(groups)]
    for measure in (EXACT, LOSS, BLEU):
        lines = [
            Line(number, system.label, points)
            for number, system in enumerate(comparison.systems)
            if (points := _points([system.scores.get(group.name) for group in groups], measure))
        ]
        if lines:
            title, unit = f"{measure.title} by {by}", measure.unit.split(";")[0]
            yield line_chart(
                title, unit, lines, x_title=axis, x_ticks=ticks, linear=measure is not LOSS
            )


def _points(scores: Sequence[dict[str, Any] | None], measure: Measure) -> list[Point]:
    return [
        Point(i, m["value"], m.get("low"), m.get("high"), m.get("per_seed", ()))
        for i, score in enumerate(scores)
        if (m := measure_of(score, measure)) is not None
    ]


def training_curves(comparison: ScoredComparison) -> Iterator[Chart]:
    lines = [
        Line(number, f"{system.label}, seed {seed}", points)
        for number, system in enumerate(comparison.systems)
        for seed, log in system.logs.items()
        if (points := [Point(update, loss) for update, loss in sorted(log.losses.items())])
    ]
    if lines:
        title, x_title = "Loss on validation text in training", "updates of its own training"
        yield line_chart(title, "bits per token", lines, x_title=x_title)
