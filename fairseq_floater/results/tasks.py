"""Show exact match on tasks by length, ours and published results, as tables and a figure: `floater table`.

The published numbers are from the authors' code, abstracts, or results for each example. The tables of
Ontañón et al. 2022 and Csordás et al. 2021 are missing, because they could not be consulted.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from fairseq_floater.data.products import SUMMARY
from fairseq_floater.evaluation.s2l.figure import Panel, plot_panels, variant_rows
from fairseq_floater.figures import Bar
from fairseq_floater.records import markdown_table, read_json

# SCAN's lengths above a cutoff of 25. The last entry stands for all of them.
_LENGTHS = ("26", "27", "28", "30", "32", "33", "36", "40", "48", "")
_DECODERS = {
    "no positions": (1.00, 1.00, 0.94, 0.95, 0.65, 0.91, 0.61, 0.03, 0, 0.797),
    "t5": (0.99, 0.98, 0.92, 0.92, 0.64, 0.86, 0.14, 0.37, 0.09, 0.799),
    "alibi": (0.68, 0.80, 0.79, 0.40, 0.13, 0.11, 0, 0, 0, 0.438),
    "rope": (0.47, 0.31, 0.39, 0.23, 0.28, 0.21, 0.23, 0.05, 0, 0.283),
    "sinusoid": (0.35, 0, 0, 0, 0, 0, 0, 0, 0, 0.057),
}
# Cutoff of SCAN -> exact match.
_LENGTH_TOLD = {22: 0.58, 24: 0.54, 25: 0.69, 26: 0.82, 27: 0.88, 28: 0.85, 30: 0.89, 32: 0.82}
_LENGTH_TOLD |= {33: 1, 36: 1, 40: 1}
_KAZEMNEJAD = (
    "Kazemnejad et al. 2023: decoders without encoders, 107 M parameters, means of 3 seeds; ours have "
    "encoders too, and are small."
)
_NEWMAN = "Newman et al. 2020: the best before 2021, told the length of the output, as ours by --told-length."
_CSORDAS = (
    "Csordás et al. 2021: a universal Transformer (blocks share parameters) with Transformer-XL's positions, "
    "50,000 updates of 256 pairs; ours have blocks of their own and fewer updates."
)
_SHARE = {"value": float, "spread?": object, "per_seed?": list}
_COMPARISON = {"labels": dict, "bins": {...: {"systems": {...: {"exact_match": _SHARE}}}}}


@dataclass(frozen=True)
class Published:
    """A published system, its exact match by group of test sentences, and how its set-up differs."""

    label: str
    shares: dict[str, float]
    setup: str

    @property
    def full_label(self) -> str:
        return f"published: {self.label}"


def published(parameters: dict[str, Any]) -> list[Published]:
    """Return the published systems of a task; ``parameters`` are those that its text was made with."""
    cutoff = parameters["cutoff"] if parameters["task"] == "scan" else None
    rows = []
    if cutoff in _LENGTH_TOLD:
        rows.append(Published("length told", {"test": _LENGTH_TOLD[cutoff]}, _NEWMAN))
    if cutoff == 26:
        rows.append(Published("xl, universal", {"test": 1.0}, _CSORDAS))
    if cutoff == 25:
        groups = [f"test, {length}" if length else "test" for length in _LENGTHS]
        rows += [
            Published(f"{name}, decoder", dict(zip(groups, shares)), _KAZEMNEJAD)
            for name, shares in _DECODERS.items()
        ]
    return rows


@dataclass
class TaskTables:
    """By task: the comparison, as `floater compare` writes it, and the published results."""

    ours: dict[str, dict[str, Any]]
    published: dict[str, list[Published]]

    @property
    def setups(self) -> dict[str, str]:
        """Return the set-up of each published system of all tasks, by its full label."""
        rows = (row for of_task in self.published.values() for row in of_task)
        return {row.full_label: row.setup for row in rows}

    def format_text(self) -> str:
        texts = ["\n".join([f"{name}:", "", *self._lines(name)]) for name in self.ours]
        return "\n\n".join([*texts, "Ours: means over seeds, ± their standard deviation."])

    def _lines(self, name: str) -> list[str]:
        labels, bins = self.ours[name]["labels"], self.ours[name]["bins"]
        main = next(iter(bins.values()))["systems"]
        order = sorted(main, key=lambda system: -main[system]["exact_match"]["value"])
        rows = [
            [labels[system], *(_shown(of["systems"].get(system)) for of in bins.values())]
            for system in order
        ]
        for row in self.published[name]:
            shares = (row.shares.get(group) for group in bins)
            cells = ("" if share is None else f"{share:.3g}" for share in shares)
            rows.append([f"*{row.full_label}*", *cells])
        setups = dict.fromkeys(row.setup for row in self.published[name])
        table = markdown_table(["exact match", *bins], rows)
        return [*table, "", *(setups or ["No published results are stored."])]


def collect_tasks(folder: str | Path) -> TaskTables | None:
    """Read the comparison of every task in ``folder``; None if there is none."""
    tables = TaskTables({}, {})
    for text in sorted(Path(folder).glob(f"*/text/{SUMMARY}")):
        work = text.parents[1]
        if (work / "compare.json").is_file():
            made = read_json(text, {"parameters": {"task": str}})["parameters"]
            tables.ours[work.name] = read_json(work / "compare.json", _COMPARISON)
            tables.published[work.name] = published(made)
    return tables if tables.ours else None


def _shown(score: dict[str, Any] | None) -> str:
    if score is None:
        return "-"
    share = score["exact_match"]
    spread = "" if share.get("spread") is None else f" ±{share['spread']:.3f}"
    return f"{share['value']:.3f}{spread}"


def plot_tasks(tables: TaskTables, path: str | os.PathLike[str]) -> None:
    """Draw exact match on all longer examples, with a panel for each task and a row for each system.

    Systems are sorted by their sum over tasks. Variants of decoding, such as told length, are dots of
    another colour in the row of their system. The ending of ``path`` decides the format.
    """
    panels, labels, order = [], dict[str, str](), defaultdict[str, float](float)
    for task, report in tables.ours.items():
        group, systems = next((name, of["systems"]) for name, of in report["bins"].items())
        bars = {report["labels"][n]: _bar(of["exact_match"]) for n, of in systems.items()}
        for row in tables.published[task]:
            if group in row.shares:
                bars[row.full_label] = Bar(row.shares[group])
        for label, bar in bars.items():
            order[label] -= bar.value
        panels.append(Panel(task, "exact match", bars))
        labels |= report["labels"]
    setups = tables.setups
    places = {label: (label, "published") for label in setups if label in order}
    lines = (fill(setup, 45 + 25 * len(panels)) for setup in dict.fromkeys(setups.values()))
    plot_panels(path, variant_rows(labels) | places, [panels], order, "\n".join(lines))


def _bar(share: dict[str, Any]) -> Bar:
    interval = None if share.get("low") is None else (share["low"], share["high"])
    return Bar(share["value"], interval, share.get("per_seed", ()))
