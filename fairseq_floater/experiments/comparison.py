"""Run the systems of a comparison under each seed, and score what is finished.

A run lies in ``WORK/seed-<n>/<system>``. Finished runs are skipped, those that another process or
machine is at work on are left to it; the table is of finished ones.
"""

from __future__ import annotations

import argparse
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.report import UNTRAINED
from fairseq_floater.experiments import cells
from fairseq_floater.experiments.cells import TableRunner, progress_of, status_text
from fairseq_floater.experiments.commands import ONE_THREAD, machines_of
from fairseq_floater.experiments.config import ListedSystem
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.preparation import ShortToLongData
from fairseq_floater.experiments.protocol import BEFORE, Protocol, RunRequest
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import duration
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.time_left import seconds_left
from fairseq_floater.records import read_json

_MOST_JOBS = 4  # side by side on a CPU, unless more are asked for
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


@dataclass(frozen=True)
class SystemCell(cells.Cell):
    """A system of the comparison."""

    entry: ListedSystem

    @property
    def name(self) -> str:
        return self.entry.system.name

    def folder(self, work: Path, seed: int) -> Path:
        return work / f"seed-{seed}" / self.name


class SystemComparison(TableRunner[SystemCell]):
    """The systems of a comparison and their scores.

    Args:
        args: the command line.
        launcher: starts the commands.
        experiment: the configuration.
        every: all systems, of which a command line may choose some; the table has all.
        baseline: the system that every other is compared with; None for none.
    """

    scores = ("seed-*/*/scores.*.json",)

    def __init__(
        self,
        args: argparse.Namespace,
        launcher: Launcher,
        experiment: Experiment,
        every: Sequence[SystemCell],
        baseline: str | None,
    ):
        super().__init__(args, launcher)
        self.experiment, self.every, self.chosen = experiment, every, every
        self.baseline = baseline
        if args.donor is not None and any(c.entry.system.stage == "donor" for c in every):
            raise UsageError(
                f"{args.config}: with `--donor` the system `--encoder {PLAIN}` has one run, not one for each "
                "seed; leave one of the two out."
            )
        cores = len(os.sched_getaffinity(0))
        self.jobs = args.jobs or (min(cores, _MOST_JOBS) if self.machines.on_cpu else 1)
        if self.machines.on_cpu and self.jobs > 1:
            launcher.environment |= ONE_THREAD
        launcher.screen.left = self._time_left

    def prepare(self) -> None:
        if self.args.dry_run:
            names = ("PYTHONPATH", *ONE_THREAD)
            found = {name: self.launcher.environment.get(name) for name in names}
            self.launcher.run(["export", *(f"{k}={v}" for k, v in found.items() if v)])
        self.prepare_data()

    @abstractmethod
    def prepare_data(self) -> None:
        """Make the data of all systems."""

    def run(self, cells: Sequence[SystemCell]) -> None:
        self.chosen = cells
        super().run(cells)

    def job(self, cell: SystemCell, seed: int) -> Protocol:
        work = self.args.work
        run = RunRequest(
            self.experiment,
            cell.entry.system,
            work / f"seed-{seed}",
            data=work / "data",
            donor=self.args.donor,
            seed=seed,
            machines=machines_of(self.args, self.experiment.config.budget),
            losses=True,
        )
        return Protocol(run, self.launcher)

    # How far it is.

    def status(self, cells: Sequence[SystemCell]) -> str:
        """Return how far each system is under each seed, donors first, and the time left."""
        self.chosen = cells
        donors = {}
        if any(cell.entry.system.stage == "finetune" for cell in cells):
            for seed in self.args.seeds:
                folder = self.args.donor or self.args.work / f"seed-{seed}" / PLAIN
                donors[folder] = f"{PLAIN} seed {seed}" if self.args.donor is None else PLAIN
        lines = [
            (name, progress_of(folder, folder.parent / ".donor.lock"))
            for folder, name in donors.items()
        ]
        lines += [
            (f"{cell.name} seed {seed}", progress_of(cell.folder(self.args.work, seed)))
            for seed in self.args.seeds
            for cell in cells
        ]
        return f"{status_text(lines)}\n{self._time_left()}".rstrip()

    def _time_left(self) -> str:
        """Say how long all that is chosen still takes here; nothing until a run is done."""
        work, seeds = self.args.work, self.args.seeds
        left = seconds_left({c.name: [c.folder(work, s) for s in seeds] for c in self.chosen})
        if not left:
            return ""
        return f"about {duration(left / self.jobs)} left in all, {self.jobs} at a time"

    # Scores.

    def whole(self, cell: SystemCell) -> list[Path]:
        """Return the folders of a system's runs that can be scored."""
        folders = [cell.folder(self.args.work, seed) for seed in self.args.seeds]
        return [
            f for f in folders if self.args.dry_run or RunFolder(f).read().get("state") == "done"
        ]

    @abstractmethod
    def scored(self, cells: Sequence[SystemCell]) -> list[str | Path]:
        """Return the words of the command that scores the finished runs of ``cells``."""

    def table_command(self) -> list[str | Path]:
        """Return the command that scores what is finished."""
        folders, work = {cell: self.whole(cell) for cell in self.every}, self.args.work
        cells = [cell for cell, found in folders.items() if found]
        if len({tuple(folder.parent for folder in folders[cell]) for cell in cells}) > 1:
            self.launcher.say(
                "Finished runs are of different seeds: until the others are finished (--status), differences "
                "between systems are differences between seeds as well, which no p-value accounts for."
            )
        words: list[Any] = self.scored(cells)
        if self.baseline in [cell.name for cell in cells]:
            words += ["--baseline", self.baseline]
        elif self.baseline:
            self.launcher.say(f"No comparison: the baseline {self.baseline} is not whole yet.")
        settings = self.experiment.settings(System(PLAIN))
        words += ["--max-len-a", settings["max_len_a"], "--max-len-b", settings["max_len_b"]]
        words += self.experiment.tokenizer()
        resamples = max(_FEWEST_RESAMPLES, _RESAMPLES_A_SYSTEM * len(cells))
        words += ["--bootstrap", str(resamples), "--json", work / f"{self.table}.json"]
        words += ["--figure", *(work / f"{self.table}.{ending}" for ending in ("png", "svg"))]
        return floater(*words)

    def print_table(self) -> None:
        """Score what is finished; print the table and where everything is."""
        if not any(map(self.whole, self.every)):
            self.launcher.say("No run is whole yet: no table.")
            return
        super().print_table()
        if not self.args.dry_run:
            print(_WHERE.format(work=self.args.work, table=self.table))


class LengthComparison(SystemComparison):
    """Systems trained on short sentences, and their scores by source length (section ``s2l``)."""

    table = "s2l"

    def prepare_data(self) -> None:
        ShortToLongData(self.experiment, self.args.work, self.args.raw, self.launcher).run()

    def scored(self, cells: Sequence[SystemCell]) -> list[str | Path]:
        words = [word for cell in cells for word in self._files(cell)]
        return ["s2l", "score", self.args.work / "split", *words]

    def _files(self, cell: SystemCell) -> Iterator[str]:
        """Yield the options that name a system's results under every seed, and its warm start's."""
        found = [("", cell.entry.label, "")]
        if self.experiment.s2l.before and cell.entry.system.stage == "finetune":
            found.insert(0, (UNTRAINED, f"{cell.entry.label}, before", BEFORE))
        options = {
            "test": ("--hypotheses", "--losses"),
            "test_short": ("--short", "--short-losses"),
        }
        for ending, label, mark in found:
            name = cell.name + ending
            yield from ("--label", f"{name}={label}")
            for folder in self.whole(cell):
                for test, (hypotheses, losses) in options.items():
                    if test in self.experiment.config.data.tests:
                        yield from (hypotheses, f"{name}={folder}/generate.{test}{mark}.txt")
                        yield from (losses, f"{name}={folder}/losses.{test}{mark}.txt")

    def print_table(self) -> None:
        super().print_table()
        split = self.args.work / "split" / "split.json"
        if any(map(self.whole, self.every)) and not self.args.dry_run:
            longest = read_json(split)["kept"]["train"]["longest_source"]
            print(_SPLIT.format(work=self.args.work, longest=longest))


class WholeSetComparison(SystemComparison):
    """Systems trained on all of the text, and their scores on its test sets."""

    table = "compare"

    def prepare_data(self) -> None:
        asked = RunRequest(self.experiment, System(PLAIN), self.args.work, raw=self.args.raw)
        Protocol(asked, self.launcher).prepare_data()

    def scored(self, cells: Sequence[SystemCell]) -> list[str | Path]:
        words = ["compare", self.args.work / "data", "--tests", *self.experiment.config.data.tests]
        for cell in cells:
            words += ["--label", f"{cell.name}={cell.entry.label}"]
            for folder in self.whole(cell):
                words += ["--run", f"{cell.name}={folder}"]
        return words
