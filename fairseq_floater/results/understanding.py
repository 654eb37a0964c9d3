"""Show Tables 3 to 5 of the paper beside the scores of our fine-tunings, and the masked-LM stages.

RoBERTa's numbers are medians of five seeds; for FLOATER's the paper does not say. Most of its gains are
smaller than the differences between seeds, so each cell has the median of the seeds and their range.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.data.understanding import glue_tasks, race, squad
from fairseq_floater.experiments.paper_numbers import TABLES_345
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.records import NUMBER, RECORD, markdown_table, read_json

_NUMBERS = {"glue": ("score",), "race": ("score", "middle", "high"), "squad": ("exact", "f1")}
_BEST = {"best_exact": "exact", "best_f1": "f1"}  # at the best threshold of SQuAD 2.0
# The form of the JSON of `floater position-loss`.
_LOSSES = {"bins?": [{"first": int, "last": int, "bits": NUMBER}], "all?": {"bits": NUMBER}}
_HEADS = {"score": "all", "exact": "EM", "f1": "F1"}
_TABLES = (
    (3, "glue", "GLUE, dev sets (CoLA: Matthews, STS-B: Pearson, others: accuracy)"),
    (4, "race", "RACE, test set, accuracy"),
    (5, "squad", "SQuAD, dev sets; 2.0 as predicted, and at the best threshold"),
)


class CellKey(NamedTuple):
    """The model size, system, task and score that a number of the tables is for."""

    size: str
    system: str
    task: str
    name: str  # of the field of scores.json

    @property
    def paper(self) -> float | None:
        """Return the paper's number; None if it has none."""
        names = _NUMBERS[TASKS[self.task].family]
        row = TABLES_345.get((self.size, self.task), {}).get(self.system)
        return None if row is None else row[names.index(_BEST.get(self.name, self.name))]


@dataclass
class SeedScores:
    """The scores by seed, in per cent, and whether all are on as many examples as the paper's."""

    paper: float | None
    scores: dict[str, float] = field(default_factory=dict)
    is_papers_set: bool = True
    chance: float | None = None

    def format(self) -> str:
        """Return ``paper / median [least, most] (n = seeds)``; a missing number is a dash."""
        paper = "-" if self.paper is None else str(self.paper)
        if not self.scores:
            return f"{paper} / -"
        values = list(self.scores.values())
        spread = f" [{min(values):.1f}, {max(values):.1f}] (n = {len(values)})"
        star = "" if self.is_papers_set else " *"
        return f"{paper} / {statistics.median(values):.2f}{spread * (len(values) > 1)}{star}"

    def to_json_dict(self) -> dict[str, Any]:
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
    """Tables 3 to 5 as far as runs exist, and the masked-LM stages."""

    folder: str
    cells: dict[CellKey, SeedScores]
    stages: list[MaskedLmStage]
    updates: dict[str, str]  # size and task -> updates per epoch, ours and the recipe's
    outside: list[tuple[str, str]] = field(default_factory=list)  # run, and why it is in no table

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "tables_3_to_5": [
                {**key._asdict(), **cell.to_json_dict()} for key, cell in self.cells.items()
            ],
            "masked_lm": [stage._asdict() for stage in self.stages],
            "updates_an_epoch": self.updates,
            "outside": [{"run": run, "reason": reason} for run, reason in self.outside],
        }

    def add_paper(self, size: str) -> None:
        for (other, task), systems in TABLES_345.items():
            for system in systems if other == size else ():
                for name in _names(task):
                    key = CellKey(size, system, task, name)
                    self.cells[key] = SeedScores(key.paper)

    def add(self, path: Path, record: dict[str, Any]) -> None:
        """Add the scores of a fine-tuning, if it has any yet, to their cells."""
        settings, file = record["settings"], path / "scores.json"
        size, system, task = (settings[key] for key in ("size", "system", "task"))
        shape = {f"{name}?": NUMBER for name in _names(task)}
        scores = read_json(file, shape) if file.is_file() else {}
        first = self.cells.get(CellKey(size, system, task, _names(task)[0]))
        if scores and first and settings["seed"] in first.scores:
            self.outside.append((str(path), f"its cell already has seed {settings['seed']}"))
            return
        is_papers_set = scores.get("total", scores.get("n")) == published_size(task)
        for name in _names(task):
            key = CellKey(size, system, task, name)
            cell = self.cells.setdefault(key, SeedScores(key.paper))
            if name in scores:
                cell.scores[settings["seed"]] = float(scores[name])
                cell.is_papers_set &= is_papers_set
                cell.chance = chance_level(path.parents[2] / "data", task, name)
        updates, recipe = record.get("updates_an_epoch"), settings.get("recipe_updates")
        if updates and recipe:
            text = f"{updates:,} updates an epoch, in the recipe {float(recipe):,.0f}"
            self.updates[f"{size} {task}"] = text

    def format_text(self) -> str:
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
                "Starred: the number of examples differs from the published set's, so not comparable with "
                "the paper."
            )
        lines += [f"{name}: {text}" for name, text in self.updates.items()]
        lines += [f"Not in a table: {run}: {why}" for run, why in self.outside]
        return "\n".join(lines)

    def _table(self, family: str) -> list[str]:
        keys = [key for key in self.cells if TASKS[key.task].family == family]
        columns = list(dict.fromkeys((key.task, key.name) for key in keys))
        heads = [_head(*column) for column in columns]
        rows = []
        for size in dict.fromkeys(key.size for key in keys):
            for system in dict.fromkeys(key.system for key in keys if key.size == size):
                cells = [self.cells.get(CellKey(size, system, *column)) for column in columns]
                if any(cell and cell.scores for cell in cells):
                    rows.append([size, system, *(c.format() if c else "" for c in cells)])
            level = [self._chance(size, *column) for column in columns]
            if any(value is not None for value in level):
                rows.append([size, "chance", *("" if v is None else f"{v:.1f}" for v in level)])
        return markdown_table(["size", "system", *heads], rows)

    def _chance(self, size: str, task: str, name: str) -> float | None:
        column = (size, task, name)
        levels = (c.chance for k, c in self.cells.items() if (k.size, k.task, k.name) == column)
        return next((level for level in levels if level is not None), None)

    def _stages(self) -> list[str]:
        rows = []
        for stage in self.stages:
            before = _bits(stage.before)
            after = _bits(stage.after) if stage.after else {}
            rows += [
                [stage.config, stage.system, span, f"{bits} -> {after.get(span, '-')}"]
                for span, bits in before.items()
            ]
        return markdown_table(["configuration", "system", "tokens", "loss"], rows)


def _bits(loss: dict[str, Any]) -> dict[str, str]:
    spans = {f"{span['first']}-{span['last']}": span["bits"] for span in loss["bins"]}
    return {span: f"{bits:.3f}" for span, bits in {**spans, "all": loss["all"]["bits"]}.items()}


def _head(task: str, name: str) -> str:
    title = TASKS[task].title
    if TASKS[task].family == "glue":
        return title
    plain = _BEST.get(name, name)
    return f"{title} {_HEADS.get(plain, plain)}" + (" (best)" if name in _BEST else "")


def collect_understanding(folder: str | os.PathLike[str]) -> UnderstandingTables | None:
    """Read every fine-tuning below ``folder``; None if there is none and no masked-LM stage."""
    root = Path(folder).resolve()  # the parents of "." have no names
    folders = [root, *root.glob("*/")]
    paths = {path.parent for parent in folders for path in parent.glob(f"*/seed-*/{RECORD}")}
    records = {path: RunFolder(path).read() for path in sorted(paths)}
    runs = {path: record for path, record in records.items() if _is_finetuning(record["settings"])}
    stages = list(_stages(folders))
    if not runs and not stages:
        return None
    tables = UnderstandingTables(str(folder), {}, stages, {})
    for size in sorted({record["settings"]["size"] for record in runs.values()}):
        tables.add_paper(size)
    for path, record in runs.items():
        tables.add(path, record)
    return tables


def _is_finetuning(settings: dict[str, str]) -> bool:
    return settings.get("experiment") == "roberta" and settings.get("task") in TASKS


def _names(task: str) -> tuple[str, ...]:
    names = _NUMBERS[TASKS[task].family]
    return (*names, *_BEST) if TASKS[task].version == "2.0" else names


def _stages(folders: Iterable[Path]) -> Iterator[MaskedLmStage]:
    for path in sorted({path for parent in folders for path in parent.glob("*/before.json")}):
        settings = RunFolder(path.parent).read()["settings"]
        before, after = read_json(path, _LOSSES), path.with_name("after.json")
        if "bins" in before:
            system = settings.get("system", path.parent.name)
            loss_after = read_json(after, _LOSSES) if after.is_file() else None
            yield MaskedLmStage(path.parent.parent.name, system, before, loss_after)


def published_size(task: str) -> int:
    """Return the published number of examples in the set that the paper's tables use."""
    kind = TASKS[task]
    if kind.family == "glue":
        return glue_tasks.glue_task(task).sizes["valid"]
    if kind.family == "race":
        return race.PUBLISHED[kind.splits[0]]
    return squad.PUBLISHED[kind.version]["valid"]


def chance_level(data: Path, task: str, name: str) -> float | None:
    """Return the score ``name`` of always giving the most frequent answer, in per cent; 0 for a correlation.

    For SQuAD it is the score of never answering. ``data`` holds prepared tasks, perhaps cut to another
    length as ``<task>-<length>``: the references are the same. None if there are none.
    """
    kind = TASKS[task]
    name_of_file = f"references.{kind.splits[0]}.{kind.ending}"
    folders = (data / task, *sorted(data.glob(f"{task}-[0-9]*")))
    path = next((f / name_of_file for f in folders if (f / name_of_file).is_file()), None)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    if kind.family == "squad":
        paragraphs = [p for article in json.loads(text)["data"] for p in article["paragraphs"]]
        questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
        return 100 * sum(not question["answers"] for question in questions) / len(questions)
    if kind.family == "race":
        questions = json.loads(text).values()
        answers = [q["answer"] for q in questions if name in ("score", q["group"])]
    elif glue_tasks.glue_task(task).metric == "accuracy":
        answers = [line.rpartition("\t")[2] for line in text.splitlines()[1:]]
    else:
        return 0.0
    return 100 * max(Counter(answers).values()) / len(answers)
