"""Put a comparison's tables, charts, pictures and translations on one page that needs no network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fairseq_floater.evaluation.s2l.score_report import ALL
from fairseq_floater.files import write_text
from fairseq_floater.requirements import versions
from fairseq_floater.results.page.charts import Chart, Line, Point, Tick, line_chart
from fairseq_floater.results.page.examples import read_examples
from fairseq_floater.results.page.logs import RunLog, read_commands, read_log
from fairseq_floater.results.page.measures import (
    BLEU,
    LOSS,
    MEASURES,
    RANK,
    Measure,
    Table,
    cost_table,
    measure_of,
    measure_table,
)
from fairseq_floater.results.page.pictures import Picture, position_picture
from fairseq_floater.results.page.work import Work, read_work

# So many systems have a colour of their own at once (page.css).
_COLOURS = 8
# Systems in colour at first, where there are more than colours.
_SHOWN = 6
SENTENCES = 3
# The tables to look at first.
_OPENED = {measure.title for measure in (LOSS, RANK, BLEU)}


@dataclass
class PageReport:
    """What was written: the page's size in bytes, and what is on it."""

    output: str
    size: int
    systems: int
    groups: list[str]
    pictures: int
    sentences: int

    def format_text(self) -> str:
        """Return one line."""
        return (
            f"{self.output}: {self.size / 1e6:.1f} MB; {self.systems} systems, {len(self.groups)} "
            f"groups of sentences, {self.pictures} pictures of positions, {self.sentences} sentences."
        )


class Shown(NamedTuple):
    """A system as the page shows it; ``colour`` is None for one that is grey at first."""

    label: str
    is_baseline: bool
    colour: int | None
    settings: dict[str, str]
    logs: dict[str, RunLog]
    picture: Picture | None


def write_page(
    work: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    pictures: bool = True,
    sentences: int = SENTENCES,
) -> PageReport:
    """Write the page of a comparison; the same folder always gives the same page.

    Args:
        work: the folder of `scripts/compare.sh`, `s2l.sh`, `demo.sh` or `protocol.sh`.
        output: the page, HTML.
        pictures: whether to draw the positions of each system whose average is there (seconds each).
        sentences: how many of each group to show with their translations.

    Raises:
        ReportError: no scores there, or a file that cannot be read.
    """
    found = read_work(Path(work))
    logs = [{seed: read_log(path) for seed, path in s.folders.items()} for s in found.systems]
    tables = [table for measure in MEASURES if (table := measure_table(found, measure))]
    common, systems = _systems(found, logs, tables[0], pictures)
    examples = read_examples(found, sentences)
    text = _template().render(
        work=found,
        seeds=list(dict.fromkeys(seed for s in found.systems for seed in s.folders)),
        systems=systems,
        charts=[*_by_length(found), *_training(found, logs)],
        opened=[table for table in tables if table.title in _OPENED],
        folded=[table for table in tables if table.title not in _OPENED],
        costs=cost_table(found, logs),
        examples=examples,
        languages=[found.settings.get(side, "") for side in ("source", "target")],
        settings=common,
        commands=read_commands(found.folder),
        versions=_versions(found, logs),
        made_with=versions(),
    )
    write_text(output, text)
    drawn = sum(bool(system.picture and system.picture.uri) for system in systems)
    groups = [group.name for group in found.groups]
    size = len(text.encode())
    return PageReport(str(output), size, len(systems), groups, drawn, len(examples))


def _template() -> Template:
    """Return the page's template, which escapes whatever is put into it."""
    environment = Environment(
        loader=PackageLoader("fairseq_floater.results.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _systems(
    work: Work, logs: Sequence[dict[str, RunLog]], table: Table, pictures: bool
) -> tuple[dict[str, str], list[Shown]]:
    """Return the settings that all systems share, and what is shown of each."""
    common, own = _settings(work)
    colours = _colours(work, table)
    data = work.folder / "data" / "bin"
    return common, [
        Shown(
            label=system.label,
            is_baseline=system.name == work.baseline,
            colour=colours.get(number),
            settings={"name": system.name, **own[number]},
            logs=logs[number],
            picture=position_picture(system, data) if pictures else None,
        )
        for number, system in enumerate(work.systems)
    ]


def _colours(work: Work, table: Table) -> dict[int, int]:
    """Return a colour for the systems to look at first: the baseline, and those that lead."""
    order = [number for number, _ in table.rows]
    order.sort(key=lambda number: work.systems[number].name != work.baseline)
    shown = order if len(order) <= _COLOURS else order[:_SHOWN]
    return {number: colour for colour, number in enumerate(shown)}


def _by_length(work: Work) -> Iterable[Chart]:
    """Yield the charts of loss and BLEU by group."""
    groups = [group for group in work.groups if group.name != ALL or not work.is_short_to_long]
    ticks = [Tick(i, group.name, group.mean) for i, group in enumerate(groups)]
    axis = "source length in tokens" if work.is_short_to_long else "test set"
    by = "source length" if work.is_short_to_long else "test set"
    for measure in (LOSS, BLEU):
        lines = []
        for number, system in enumerate(work.systems):
            scores = (system.scores.get(group.name) for group in groups)
            points = _points(scores, measure)
            if points:
                lines.append(Line(number, system.label, points))
        if lines:
            title, unit = f"{measure.title} by {by}", measure.unit.split(";")[0]
            yield line_chart(
                title, unit, lines, x_title=axis, x_ticks=ticks, linear=measure is BLEU
            )


def _points(scores: Iterable[dict[str, Any] | None], measure: Measure) -> list[Point]:
    found = ((i, measure_of(score, measure)) for i, score in enumerate(scores))
    return [
        Point(i, m["value"], m.get("low"), m.get("high"), m.get("per_seed", ()))
        for i, m in found
        if m is not None
    ]


def _training(work: Work, logs: Sequence[dict[str, RunLog]]) -> Iterable[Chart]:
    """Yield the chart of validation loss by update, a line for each run, where logs are there."""
    lines = [
        Line(number, f"{work.systems[number].label}, seed {seed}", points)
        for number, of_seeds in enumerate(logs)
        for seed, log in of_seeds.items()
        if (points := [Point(update, loss) for update, loss in sorted(log.losses.items())])
    ]
    if lines:
        unit = "bits per token"
        yield line_chart(
            "Loss on validation text in training",
            unit,
            lines,
            x_title="updates of its own training",
        )


def _settings(work: Work) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the settings that all systems share, and those of each system besides.

    A setting that differs by seed alone shows the values of all seeds.
    """
    merged = []
    for system in work.systems:
        runs = [run.settings for run in system.runs.values()]
        keys = dict.fromkeys(key for settings in runs for key in settings)
        values = {key: dict.fromkeys(s[key] for s in runs if key in s) for key in keys}
        merged.append({key: ", ".join(found) for key, found in values.items()})
    known = [settings for settings in merged if settings]
    first = known[0] if known else {}
    common = {k: v for k, v in first.items() if all(s.get(k) == v for s in known)}
    own = [{k: v for k, v in settings.items() if k not in common} for settings in merged]
    return common, own


def _versions(work: Work, logs: Sequence[dict[str, RunLog]]) -> dict[str, str]:
    """Return the versions that runs and scores were made with, where they record them."""
    found: dict[str, dict[str, None]] = {}
    made_with = [v for of_seeds in logs for log in of_seeds.values() for v in log.versions]
    for system in work.systems:
        for run in system.runs.values():
            for score in run.scores.values():
                made_with.append(score.get("versions", {}))
    for versions_of in made_with:
        for name, version in versions_of.items():
            found.setdefault(name, {})[str(version)] = None
    return {name: ", ".join(values) for name, values in found.items()}
