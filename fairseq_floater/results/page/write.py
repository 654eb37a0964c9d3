"""Put a comparison's tables, charts, pictures and translations on one page that needs no network.

The page of several tasks has an overview, and the exact match of each task.
"""

from __future__ import annotations

import base64
import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import UsageError
from fairseq_floater.files import write_text
from fairseq_floater.requirements import versions
from fairseq_floater.results.page.comparison import (
    ScoredComparison,
    ScoredSystem,
    read_comparison,
)
from fairseq_floater.results.page.curves import curves_by_length, training_curves
from fairseq_floater.results.page.examples import read_examples
from fairseq_floater.results.page.logs import read_commands
from fairseq_floater.results.page.measures import (
    BLEU,
    EXACT,
    LOSS,
    MEASURES,
    RANK,
    Table,
    TableCell,
    cost_table,
    measure_table,
)
from fairseq_floater.results.page.tasks import ScoredTasks, read_tasks
from fairseq_floater.results.position_figure import plot_positions

# The number of colours in page.css: at most this many systems are in colour at once.
_COLOURS = 8
# Systems in colour at first, if there are more systems than colours.
_SHOWN = 6
SENTENCES = 3
_PICTURE_QUALITY = 80
_PICTURE_WIDTH = 1200  # pixels: twice what a column of the page shows
# The tables to look at first.
_OPENED = {measure.title for measure in (EXACT, LOSS, RANK, BLEU)}


@dataclass
class PageReport:
    """What was written: the page's size in bytes, and what is on it."""

    output: str
    size: int
    systems: int
    groups: list[str]  # of sentences, or tasks
    pictures: int
    sentences: int
    kind: str = "groups of sentences"

    def format_text(self) -> str:
        return (
            f"{self.output}: {self.size / 1e6:.1f} MB; {self.systems} systems, {len(self.groups)} "
            f"{self.kind}, {self.pictures} pictures of positions, {self.sentences} sentences."
        )


class Picture(NamedTuple):
    """A picture as data URI (empty if nothing can be drawn), its caption, and the figure's warnings."""

    uri: str
    text: str
    warnings: list[str]


def write_page(
    work: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    pictures: bool = True,
    sentences: int = SENTENCES,
) -> PageReport:
    """Write the page of a comparison or of several tasks; the same folder always gives the same page.

    Args:
        pictures: whether to draw the positions of each system whose average exists (seconds each).
        sentences: how many of each group to show with their translations. A page of tasks has neither.

    Raises:
        ReportError: there are no scores, or a file cannot be read.
        UsageError: ``output`` does not end in .html.
    """
    if Path(output).suffix != ".html":
        raise UsageError(f"`OUT` must end in .html, but is {output}.")
    if (tasks := read_tasks(Path(work))) is not None:
        kind, content = "tasks", _of_tasks(tasks)
    else:
        kind, content = PageReport.kind, _of_comparison(Path(work), pictures, sentences)
    text = _template().render(**content, kind=kind, made_with=versions())
    write_text(output, text)
    groups = [group.name for group in content["comparison"].groups]
    images = sum(bool(picture and picture.uri) for picture in content["pictures"])
    size = len(text.encode("utf-8", "backslashreplace"))
    numbers = len(content["systems"]), groups, images, len(content["examples"])
    return PageReport(str(output), size, *numbers, kind)


def _of_comparison(work: Path, pictures: bool, sentences: int) -> dict[str, Any]:
    """Return the template's variables for a comparison."""
    scored = read_comparison(work)
    systems, data = scored.systems, scored.folder / "data" / "bin"
    tables = [table for measure in MEASURES if (table := measure_table(scored, measure))]
    common, different = _settings(scored)
    return {
        "comparison": scored,
        "seeds": list(dict.fromkeys(seed for system in systems for seed in system.runs)),
        "systems": systems,
        "colours": _colours(scored, tables[0]),
        "pictures": [_picture(system, data) if pictures else None for system in systems],
        "different": different,
        "charts": [*curves_by_length(scored), *training_curves(scored)],
        "opened": [table for table in tables if table.title in _OPENED],
        "folded": [table for table in tables if table.title not in _OPENED],
        "costs": cost_table(scored),
        "examples": read_examples(scored, sentences),
        "languages": [scored.settings.get(side, "") for side in ("source", "target")],
        "settings": common,
        "commands": read_commands(scored.folder),
        "versions": _versions(scored),
    }


def _of_tasks(scored: ScoredTasks) -> dict[str, Any]:
    """Return the template's variables for several tasks, which have exact match alone."""
    overview = scored.overview
    tables = [_overview_table(overview), *(_exact_table(t, t.name) for t in scored.tasks)]
    charts = (next(curves_by_length(task)) for task in scored.tasks)  # all have exact match
    return {
        "comparison": overview,
        "seeds": scored.seeds,
        "systems": overview.systems,
        "colours": _colours(overview, tables[0]),
        "charts": [replace(c, title=task.name) for c, task in zip(charts, scored.tasks)],
        "opened": tables,
        **dict.fromkeys(("pictures", "folded", "examples", "commands"), ()),
        **dict.fromkeys(("costs", "settings", "versions"), {}),
    }


def _overview_table(overview: ScoredComparison) -> Table:
    """Return the table of exact match by task. First come the systems with the most tasks, by their mean."""

    def place(row: tuple[int, list[TableCell]]) -> tuple[int, float]:
        values = [cell.value for cell in row[1] if cell.value is not None]
        return -len(values), -fmean(values)

    table = _exact_table(overview, "Exact match by task")
    unit = f"{table.unit}; the highest mean over all tasks first"
    return replace(table, unit=unit, main="", rows=sorted(table.rows, key=place))


def _exact_table(scored: ScoredComparison, title: str) -> Table:
    """Return the table of exact match, without the systems that have none."""
    table = measure_table(scored, EXACT)
    assert table is not None  # `read_tasks` reads nothing without it
    rows = [row for row in table.rows if any(cell.value is not None for cell in row[1])]
    return replace(table, title=title, rows=rows)


def _template() -> Template:
    """Return the page's template, which escapes all that is put into it."""
    environment = Environment(
        loader=PackageLoader("fairseq_floater.results.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _picture(system: ScoredSystem, data: Path) -> Picture | None:
    """Draw Figure 3 for the averaged checkpoint of a system's first seed; None if there is none.

    ``data`` is the folder of binarised data, for the trained length; it may be missing.
    """
    from PIL import Image  # comes with matplotlib

    folder = next(iter(system.folders.values()), None)
    if folder is None or not (average := folder / "average.pt").is_file():
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "positions.png"
        try:
            figure = plot_positions(average, path, data=str(data) if data.is_dir() else None)
        except (CheckpointError, ValueError) as error:
            return Picture("", str(error), [])
        small = io.BytesIO()
        with Image.open(path) as image:
            rgb = image.convert("RGB")
            rgb.thumbnail((_PICTURE_WIDTH, rgb.height))
            rgb.save(small, "webp", quality=_PICTURE_QUALITY)
    text = base64.b64encode(small.getvalue()).decode("ascii")
    words = f"Positions of {system.label}: {figure.title}"
    return Picture(f"data:image/webp;base64,{text}", words, figure.warnings)


def _colours(comparison: ScoredComparison, table: Table) -> dict[int, int]:
    """Return a colour for each system that is shown first: the baseline and the best ones."""
    order = [number for number, _ in table.rows]
    order.sort(key=lambda number: comparison.systems[number].name != comparison.baseline)
    shown = order if len(order) <= _COLOURS else order[:_SHOWN]
    return {number: colour for colour, number in enumerate(shown)}


def _settings(comparison: ScoredComparison) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the settings that all systems share, and the other settings of each system.

    A setting that differs by seed alone shows the values of all seeds.
    """
    merged = [_values([run.settings for run in s.runs.values()]) for s in comparison.systems]
    known = [settings for settings in merged if settings]
    first = known[0] if known else {}
    common = {k: v for k, v in first.items() if all(s.get(k) == v for s in known)}
    different = [
        {"name": system.name} | {k: v for k, v in settings.items() if k not in common}
        for system, settings in zip(comparison.systems, merged)
    ]
    return common, different


def _versions(comparison: ScoredComparison) -> dict[str, str]:
    logs = [log for system in comparison.systems for log in system.logs.values()]
    runs = [run for system in comparison.systems for run in system.runs.values()]
    scores = [score for run in runs for score in run.scores.values()]
    of_logs = [versions for log in logs for versions in log.versions]
    return _values([*of_logs, *(score.get("versions", {}) for score in scores)])


def _values(records: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return all values of each key, each value once."""
    keys = dict.fromkeys(key for record in records for key in record)
    return {
        key: ", ".join(dict.fromkeys(str(record[key]) for record in records if key in record))
        for key in keys
    }
