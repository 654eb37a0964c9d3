"""Read the comparisons of several tasks (`scripts/tasks.sh`) for one page, beside published results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.results.page.comparison import (
    Group,
    ScoredComparison,
    ScoredSystem,
    groups_of,
    scores_of,
)
from fairseq_floater.results.tasks import Published, collect_tasks


class ScoredTasks(NamedTuple):
    """An overview, whose groups are the tasks, and each task's comparison; all list the same systems."""

    overview: ScoredComparison
    tasks: list[ScoredComparison]
    seeds: list[str]


def read_tasks(folder: Path) -> ScoredTasks | None:
    """Read the scores of all tasks in ``folder``, published systems last; None if there are none."""
    tables = collect_tasks(folder)
    if tables is None:
        return None
    tasks = [_task(folder / n, of, tables.published[n]) for n, of in tables.ours.items()]
    labels = {system.name: system.label for task in tasks for system in task.systems}
    setups = tables.setups
    names = sorted(labels, key=lambda name: name in setups)
    for task in tasks:
        known = {system.name: system for system in task.systems}
        task.systems = [known.get(name) or ScoredSystem(name, labels[name]) for name in names]
    by_system = zip(*(task.systems for task in tasks))
    overview = ScoredComparison(
        folder,
        [_on_all(of_one, tasks) for of_one in by_system],
        [Group(task.name, task.groups[0].sentences) for task in tasks],
        tasks[0].baseline,
        facts=setups,
        warnings=[f"{task.name}: {warning}" for task in tasks for warning in task.warnings],
    )
    runs = (
        Path(run)
        for report in tables.ours.values()
        for of_system in report.get("runs", {}).values()
        for run in of_system
    )
    seeds = {run.parent.name.removeprefix("seed-") for run in runs}
    return ScoredTasks(overview, tasks, sorted(seeds, key=lambda seed: (len(seed), seed)))


def _task(folder: Path, report: dict[str, Any], rows: Sequence[Published]) -> ScoredComparison:
    groups = groups_of(report)
    systems = [
        ScoredSystem(name, label, scores=scores_of(name, report))
        for name, label in report["labels"].items()
    ]
    for row in rows:
        shares = {g.name: row.shares[g.name] for g in groups if g.name in row.shares}
        scores = {group: {"exact_match": {"value": share}} for group, share in shares.items()}
        systems.append(ScoredSystem(row.full_label, row.full_label, scores=scores))
    warnings = report["warnings"]
    return ScoredComparison(folder, systems, groups, report["baseline"], warnings=warnings)


def _on_all(of_one: Sequence[ScoredSystem], tasks: Sequence[ScoredComparison]) -> ScoredSystem:
    """Return a system with its score on each task: on the task's main group, all longer examples."""
    scores = {
        task.name: system.scores[task.main_group]
        for task, system in zip(tasks, of_one)
        if task.main_group in system.scores
    }
    return ScoredSystem(of_one[0].name, of_one[0].label, scores=scores)
