"""Show Tables 3 to 5 of the paper beside what a folder of fine-tunings has scored, and the masked-LM stages.

RoBERTa's numbers are medians of five seeds; the paper says nothing of FLOATER's. Most of its gains are
smaller than what a seed changes, so each cell has the median of the seeds and their range.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.experiments.paper_numbers import TABLES_345
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.run_folder import RECORD, RunFolder
from fairseq_floater.records import markdown_table, read_json
from fairseq_floater.results.chance import chance_level, published_size

_NUMBERS = {"glue": ("score",), "race": ("score", "middle", "high"), "squad": ("exact", "f1")}
_BEST = {"exact": "best_exact", "f1": "best_f1"}  # at the best threshold of SQuAD 2.0
_HEADS = {"score": "all", "exact": "EM", "f1": "F1"}
_TABLES = (
    (3, "glue", "GLUE, dev sets (CoLA: Matthews, STS-B: Pearson, accuracy else)"),
    (4, "race", "RACE, test set, accuracy"),
    (5, "squad", "SQuAD, dev sets; 2.0 as predicted, and at the best threshold"),
)


class Key(NamedTuple):
    """What a number is of."""

    size: str
    system: str
    task: str
    name: str  # of the field of scores.json

    @property
    def paper(self) -> float | None:
        """Return the paper's number; None where it has none."""
        names = _NUMBERS[TASKS[self.task].family]
        plain = next((n for n, best in _BEST.items() if best == self.name), self.name)
        row = TABLES_345.get((self.size, self.task), {}).get(self.system)
        return None if row is None else row[names.index(plain)]


@dataclass
class SeedScores:
    """The scores of the seeds, in per cent, and whether all are of as many examples as the paper's."""

    paper: float | None
    scores: dict[str, float] = field(default_factory=dict)
    is_papers_set: bool = True
    chance: float | None = None

    def format(self) -> str:
        """Return ``paper / median [least, most] (n = seeds)``; a number that is not there is a dash."""
        paper = "-" if self.paper is None else str(self.paper)
        if not self.scores:
            return f"{paper} / -"
        values = list(self.scores.values())
        spread = f" [{min(values):.1f}, {max(values):.1f}] (n = {len(values)})"
        star = "" if self.is_papers_set else " *"
        return f"{paper} / {statistics.median(values):.2f}{spread * (len(values) > 1)}{star}"

    def to_json_dict(self) -> dict[str, Any]:
        """Return the numbers as plain JSON values."""
        values = list(self.scores.values())
        return {
            "paper": self.paper,
            "median": statistics.median(values) if values else None,
            "least": min(values, default=None),
            "most": max(values, default=None),
            "seeds": self.scores,
            "papers_set": self.is_papers_set if values else None,
            "chance": self.chance,
        }


class MaskedLmStage(NamedTuple):
    """The masked-LM stage of a system: its loss by position before and after, as JSON."""

    config: str
    system: str
    before: dict[str, Any]
    after: dict[str, Any] | None


@dataclass
class UnderstandingTables:
    """Tables 3 to 5 as far as there are runs, and the masked-LM stages."""

    folder: str
    cells: dict[Key, SeedScores]
    stages: list[MaskedLmStage]
    updates: dict[str, str]  # a task of a size -> its updates an epoch beside the recipe's

    def to_json_dict(self) -> dict[str, Any]:
        """Return every cell as plain JSON values."""
        return {
            "folder": self.folder,
            "tables_3_to_5": [
                {**key._asdict(), **cell.to_json_dict()} for key, cell in self.cells.items()
            ],
            "masked_lm": [stage._asdict() for stage in self.stages],
            "updates_an_epoch": self.updates,
        }

    def format_text(self) -> str:
        """Return Markdown: a table a family, then the masked-LM stages, then notes."""
        lines: list[str] = []
        for number, family, title in _TABLES:
            if any(TASKS[key.task].family == family and c.scores for key, c in self.cells.items()):
                lines += [f"Table {number}, {title}: paper / ours", "", *self._table(family), ""]
        if self.stages:
            lines += ["Masked-LM loss by position, bits a token: before -> after training", ""]
            lines += [*self._stages(), ""]
        lines.append(
            "Ours: the median of the seeds [least, most]; chance: the most frequent answer."
        )
        if any(cell.scores and not cell.is_papers_set for cell in self.cells.values()):
            lines.append(
                "Starred: of another number of examples than the published set, not comparable with the "
                "paper."
            )
        lines += [f"{name}: {text}" for name, text in self.updates.items()]
        return "\n".join(lines)

    def _table(self, family: str) -> list[str]:
        keys = [key for key in self.cells if TASKS[key.task].family == family]
        columns = list(dict.fromkeys((key.task, key.name) for key in keys))
        heads = [_head(*column) for column in columns]
        rows = []
        for size in dict.fromkeys(key.size for key in keys):
            for system in dict.fromkeys(key.system for key in keys if key.size == size):
                found = [self.cells.get(Key(size, system, *column)) for column in columns]
                if any(cell and cell.scores for cell in found):
                    rows.append([size, system, *(c.format() if c else "" for c in found)])
            level = [self._chance(size, task) for task, _ in columns]
            if any(value is not None for value in level):
                rows.append([size, "chance", *("" if v is None else f"{v:.1f}" for v in level)])
        return markdown_table(["size", "system", *heads], rows)

    def _chance(self, size: str, task: str) -> float | None:
        found = (c.chance for key, c in self.cells.items() if key[::2] == (size, task))
        return next((level for level in found if level is not None), None)

    def _stages(self) -> list[str]:
        rows = []
        for stage in self.stages:
            before = _bits(stage.before)
            after = _bits(stage.after) if stage.after else {}
            rows += [
                [stage.config, stage.system, span, f"{bits:.3f} -> " + _number(after.get(span))]
                for span, bits in before.items()
            ]
        return markdown_table(["configuration", "system", "tokens", "loss"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _bits(found: dict[str, Any]) -> dict[str, float]:
    """Return the loss by span of tokens, of a result of `floater position-loss`."""
    spans = {f"{b['first']}-{b['last']}": b["bits"] for b in found["bins"]}
    return {**spans, "all": found["all"]["bits"]}


def _head(task: str, name: str) -> str:
    title = TASKS[task].title
    if TASKS[task].family == "glue":
        return title
    plain = next((n for n, best in _BEST.items() if best == name), None)
    shown = _HEADS.get(plain or name, name)
    return f"{title} {shown}" + (" (best)" if plain else "")


def collect_understanding(folder: str | os.PathLike[str]) -> UnderstandingTables | None:
    """Read every fine-tuning below ``folder``; None where there is neither one nor a masked-LM stage.

    Raises:
        ReportError: a result that cannot be read.
    """
    place = Path(folder).resolve()  # the parents of "." have no names
    places = [place, *place.glob("*/")]
    found = {path.parent for place in places for path in place.glob(f"*/seed-*/{RECORD}")}
    runs = [run for run in map(_read, sorted(found)) if run is not None]
    stages = list(_stages(places))
    if not runs and not stages:
        return None
    tables = UnderstandingTables(str(folder), {}, stages, {})
    for size in sorted({run.settings["size"] for run in runs}):
        _add_paper(tables, size)
    for run in runs:
        run.add_to(tables)
    return tables


def _add_paper(tables: UnderstandingTables, size: str) -> None:
    """Add the cells of the paper of a size, in its order."""
    for (other, task), systems in TABLES_345.items():
        for system in systems if other == size else ():
            for name in _names(task):
                key = Key(size, system, task, name)
                tables.cells[key] = SeedScores(key.paper)


def _names(task: str) -> tuple[str, ...]:
    names = _NUMBERS[TASKS[task].family]
    return (*names, *_BEST.values()) if TASKS[task].version == "2.0" else names


class _Run(NamedTuple):
    """A fine-tuning: its folder, settings and scores (empty where it has none yet)."""

    path: Path
    settings: dict[str, str]
    scores: dict[str, Any]
    updates: int | None

    def add_to(self, tables: UnderstandingTables) -> None:
        """Add the scores to the cells that they are of."""
        size, system, task = (self.settings[key] for key in ("size", "system", "task"))
        names = _names(task)
        sized = self.scores.get("total", self.scores.get("n")) == published_size(task)
        for name in names:
            key = Key(size, system, task, name)
            cell = tables.cells.setdefault(key, SeedScores(key.paper))
            if name in self.scores:
                cell.scores[self.settings["seed"]] = float(self.scores[name])
                cell.is_papers_set &= sized
                cell.chance = chance_level(self.path.parents[2] / "data" / task, task)
        recipe = self.settings.get("recipe_updates")
        if self.updates and recipe:
            text = f"{self.updates:,} updates an epoch, the recipe's {float(recipe):,.0f}"
            tables.updates[f"{size} {task}"] = text


def _read(path: Path) -> _Run | None:
    record, scores = RunFolder(path).read(), path / "scores.json"
    settings = record["settings"]
    if settings.get("experiment") != "roberta" or settings.get("task") not in TASKS:
        return None
    found = read_json(scores) if scores.is_file() else {}
    return _Run(path, settings, found, record.get("updates_an_epoch"))


def _stages(places: Iterable[Path]) -> Iterable[MaskedLmStage]:
    for path in sorted({path for place in places for path in place.glob("*/before.json")}):
        settings = RunFolder(path.parent).read()["settings"]
        before, after = read_json(path), path.with_name("after.json")
        if "bins" in before:
            system = settings.get("system", path.parent.name)
            done = read_json(after) if after.is_file() else None
            yield MaskedLmStage(path.parent.parent.name, system, before, done)
