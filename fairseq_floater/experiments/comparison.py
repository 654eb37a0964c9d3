"""Run the systems of a comparison under each seed, and score what is finished.

A run lies in ``WORK/seed-<n>/<system>``. Finished runs are skipped, those that another process or
machine is at work on are left to it; the table is of finished ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.evaluation.s2l.report import UNTRAINED
from fairseq_floater.experiments.cells import Cell
from fairseq_floater.experiments.commands import ONE_THREAD
from fairseq_floater.experiments.config import ListedSystem
from fairseq_floater.experiments.hardware import machines_from_args
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import BEFORE, Protocol
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.tables import Table
from fairseq_floater.records import read_json

_FEWEST_RESAMPLES = 1000
# So many for each comparison with the baseline: corrected for their number, a p-value can still be 0.01.
_RESAMPLES_A_SYSTEM = 100
_WHERE = """
Table   {work}/{table}.md, {work}/{table}.json
Figure  {work}/{table}.png, {work}/{table}.svg
Runs    {work}/seed-<seed>/<system>"""
_SPLIT = """
Longest training source: {longest} tokens. Rows of `learned` past the trained length were never trained.
Split   {work}/split: counts and overlap in split.json, the origin of each test pair in test.tsv"""


def cells_of(
    args: argparse.Namespace, experiment: Experiment, systems: Sequence[ListedSystem]
) -> list[Cell]:
    """Return the runs of systems under each seed."""
    cells = []
    for seed in args.seeds:
        for entry in systems:
            name, job = entry.system.name, partial(_job, args, experiment, entry.system, seed)
            cells.append(Cell(name, args.work / f"seed-{seed}" / name, job, seed))
    return cells


def _job(
    args: argparse.Namespace, experiment: Experiment, system: System, seed: int, launcher: Launcher
) -> Protocol:
    request = RunRequest(
        experiment,
        system,
        args.work / f"seed-{seed}",
        data=args.work / "data",
        donor=args.donor,
        seed=seed,
        machines=machines_from_args(args, experiment.config.budget),
        losses=True,
    )
    return Protocol(request, launcher)


def donors_of(args: argparse.Namespace) -> list[Cell]:
    """Return the donor that all seeds share, or one of each."""
    if args.donor is not None:
        return [Cell(PLAIN, args.donor, None, lock=args.donor.parent / ".donor.lock")]
    donors = []
    for seed in args.seeds:
        work = args.work / f"seed-{seed}"
        donors.append(Cell(PLAIN, work / PLAIN, None, seed, work / ".donor.lock"))
    return donors


class ComparisonTable(Table):
    """The systems of a comparison and their scores: by source length, or of whole test sets.

    Args:
        launcher: starts the commands.
        args: the command line.
        experiment: the configuration; with a section ``s2l`` it trains on short sentences.
        systems: all of them, of which a command line may choose some; the table has all.
        cells: the chosen ones.
        jobs: how many side by side.
        baseline: the system that every other is compared with; None for none.
    """

    def __init__(
        self,
        launcher: Launcher,
        args: argparse.Namespace,
        experiment: Experiment,
        systems: Sequence[ListedSystem],
        cells: Sequence[Cell],
        jobs: int,
        baseline: str | None,
    ):
        self.by_length = experiment.config.s2l is not None
        super().__init__(launcher, args.work, "s2l" if self.by_length else "compare", cells, jobs)
        self.raw, self.seeds = args.raw, args.seeds
        self.experiment, self.systems, self.baseline = experiment, systems, baseline

    def run(self) -> None:
        """Make the data of all systems, then run them as every table does."""
        launcher, experiment = self.launcher, self.experiment
        if launcher.dry_run:
            names = ("PYTHONPATH", *ONE_THREAD)
            values = {name: launcher.environment.get(name) for name in names}
            launcher.run(["export", *(f"{k}={v}" for k, v in values.items() if v)])
        request = RunRequest(experiment, System(PLAIN), self.work, raw=self.raw)
        data = Protocol(request, launcher)
        if self.by_length:
            data.prepare_split()
        else:
            data.prepare_data()
        super().run()

    def _whole(self, system: System) -> list[Path]:
        """Return the folders of a system's runs that can be scored."""
        folders = [self.work / f"seed-{seed}" / system.name for seed in self.seeds]
        dry_run = self.launcher.dry_run
        return [f for f in folders if dry_run or RunFolder(f).read().get("state") == "done"]

    def command(self) -> list[Any]:
        """Return the command that scores what is finished."""
        folders = {entry: self._whole(entry.system) for entry in self.systems}
        runs = {entry: paths for entry, paths in folders.items() if paths}
        if len({tuple(path.parent for path in paths) for paths in runs.values()}) > 1:
            self.launcher.say(
                "Finished runs are of different seeds: until the others are finished (--status), differences "
                "between systems are differences between seeds as well, which no p-value accounts for."
            )
        argv = self._by_length(runs) if self.by_length else self._of_whole_sets(runs)
        if self.baseline in [entry.system.name for entry in runs]:
            argv += ["--baseline", self.baseline]
        elif self.baseline:
            self.launcher.say(f"No comparison: the baseline {self.baseline} is not whole yet.")
        settings = self.experiment.settings(System(PLAIN))
        argv += ["--max-len-a", settings["max_len_a"], "--max-len-b", settings["max_len_b"]]
        argv += self.experiment.tokenizer()
        resamples = max(_FEWEST_RESAMPLES, _RESAMPLES_A_SYSTEM * len(runs))
        argv += ["--bootstrap", str(resamples), "--json", self.work / f"{self.name}.json"]
        return [*argv, "--figure", *(self.work / f"{self.name}.{e}" for e in ("png", "svg"))]

    def _of_whole_sets(self, runs: dict[ListedSystem, list[Path]]) -> list[Any]:
        argv = floater("compare", self.work / "data", "--tests", *self.experiment.config.data.tests)
        for entry, folders in runs.items():
            argv += ["--label", f"{entry.system.name}={entry.label}"]
            for folder in folders:
                argv += ["--run", f"{entry.system.name}={folder}"]
        return argv

    def _by_length(self, runs: dict[ListedSystem, list[Path]]) -> list[Any]:
        files = (word for entry, folders in runs.items() for word in self._files(entry, folders))
        return floater("s2l", "score", self.work / "split", *files)

    def _files(self, entry: ListedSystem, folders: list[Path]) -> Iterator[str]:
        """Yield the options that name a system's results under every seed, and its warm start's."""
        models = [("", entry.label, "")]
        if self.experiment.s2l.before and entry.system.stage == "finetune":
            models.insert(0, (UNTRAINED, f"{entry.label}, before", BEFORE))
        options = {
            "test": ("--hypotheses", "--losses"),
            "test_short": ("--short", "--short-losses"),
        }
        for ending, label, mark in models:
            name = entry.system.name + ending
            yield from ("--label", f"{name}={label}")
            for folder in folders:
                for test, (hypotheses, losses) in options.items():
                    if test in self.experiment.config.data.tests:
                        yield from (hypotheses, f"{name}={folder}/generate.{test}{mark}.txt")
                        yield from (losses, f"{name}={folder}/losses.{test}{mark}.txt")

    def lacking(self) -> str:
        is_scored = any(self._whole(entry.system) for entry in self.systems)
        return "" if is_scored else "No run is whole yet: no table."

    def print(self) -> None:
        """Score what is finished; print the table and where everything is."""
        super().print()
        if self.launcher.dry_run or self.lacking():
            return
        print(_WHERE.format(work=self.work, table=self.name))
        if self.by_length:
            shape = {"kept": {"train": {"longest_source": int}}}
            longest = read_json(self.work / "split" / "split.json", shape)["kept"]["train"]
            print(_SPLIT.format(work=self.work, longest=longest["longest_source"]))
