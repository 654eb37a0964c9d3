"""Compare systems: data, a run of each under each seed, scores by length (`scripts/compare.sh`, `s2l.sh`).

A run lies in ``WORK/seed-<n>/<system>``. Runs that are whole are skipped, those that another process or
machine is at work on are left to it; the table is of what is whole.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError, exit_code
from fairseq_floater.evaluation.s2l.score_report import UNTRAINED
from fairseq_floater.experiments import cells
from fairseq_floater.experiments.cells import (
    TableRunner,
    act,
    add_table_options,
    progress_of,
    select,
    status_text,
)
from fairseq_floater.experiments.commands import (
    ONE_THREAD,
    add_config,
    add_node_options,
    experiment_of,
    seeds,
    work_of,
)
from fairseq_floater.experiments.config import ListedSystem
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.preparation import Preparation
from fairseq_floater.experiments.protocol import BEFORE, Protocol, Run
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import duration
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.time_left import seconds_left
from fairseq_floater.position_encoders.registry import encoder_names
from fairseq_floater.records import read_json
from fairseq_floater.verbs import positive

_MOST_JOBS = 4  # side by side on a CPU, unless more are asked for
_FEWEST_RESAMPLES = 1000
# So many for each comparison with the baseline: corrected for their number, a p-value can still be 0.01.
_RESAMPLES_A_SYSTEM = 100
_WHERE = """
Longest training source: {longest} tokens. Rows of `learned` past the trained length were never trained.
Table   {work}/s2l.md, {work}/s2l.json
Figure  {work}/s2l.png, {work}/s2l.svg
Split   {work}/split: counts and overlap in split.json, the origin of each test pair in test.tsv
Runs    {work}/seed-<seed>/<system>"""


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A system of the comparison."""

    system: ListedSystem

    @property
    def name(self) -> str:
        return self.system.run.name

    def folder(self, work: Path, seed: int) -> Path:
        return work / f"seed-{seed}" / self.name


class LengthComparison(TableRunner[Cell]):
    """The systems of a comparison and their scores by length.

    Args:
        args: the command line.
        launcher: starts the commands.
        experiment: the configuration, with a section ``s2l``.
        every: all systems, of which a command line may choose some; the table has all.
    """

    table, scores = "s2l", ("seed-*/*/scores.*.json",)

    def __init__(
        self,
        args: argparse.Namespace,
        launcher: Launcher,
        experiment: Experiment,
        every: Sequence[Cell],
    ):
        super().__init__(args, launcher)
        self.experiment, self.every, self.chosen = experiment, every, every
        self.script = f"compare.sh {args.config}"
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
        Preparation(self.experiment, self.args.work, self.args.raw, self.launcher).run()

    def run(self, cells: Sequence[Cell]) -> None:
        self.chosen = cells
        super().run(cells)

    def job(self, cell: Cell, seed: int) -> Protocol:
        work = self.args.work
        run = Run(
            self.experiment,
            cell.system.run,
            work / f"seed-{seed}",
            data=work / "data",
            donor=self.args.donor,
            seed=seed,
            machines=self.machines,
            losses=True,
        )
        return Protocol(run, self.launcher)

    # How far it is.

    def status(self, cells: Sequence[Cell]) -> str:
        """Return how far each system is under each seed, donors first, and the time left."""
        self.chosen = cells
        donors = {}
        if any(cell.system.run.stage == "finetune" for cell in cells):
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

    def _whole(self, cell: Cell) -> list[Path]:
        """Return the folders of a system's runs that can be scored."""
        folders = [cell.folder(self.args.work, seed) for seed in self.args.seeds]
        return [
            f for f in folders if self.args.dry_run or RunFolder(f).read().get("state") == "done"
        ]

    def table_command(self) -> list[str | Path]:
        """Return the command that scores what is whole, bin by bin."""
        words: list[Any] = []
        scored = [cell for cell in self.every if self._whole(cell)]
        for cell in scored:
            words += self._files(cell)
        settings = self.experiment.settings(System(PLAIN))
        if settings["baseline"] in [cell.name for cell in scored]:
            words += ["--baseline", settings["baseline"]]
        else:
            self.launcher.say(
                f"No comparison: the baseline {settings['baseline']} is not whole yet."
            )
        words += ["--max-len-a", settings["max_len_a"], "--max-len-b", settings["max_len_b"]]
        resamples = max(_FEWEST_RESAMPLES, _RESAMPLES_A_SYSTEM * len(scored))
        words += ["--bootstrap", str(resamples), "--json", self.args.work / "s2l.json"]
        words += ["--figure", self.args.work / "s2l.png", self.args.work / "s2l.svg"]
        return floater("s2l", "score", self.args.work / "split", *words)

    def _files(self, cell: Cell) -> list[str]:
        """Return the options that name a system's results under every seed, and its warm start's."""
        found = [("", cell.system.label, "")]
        if self.experiment.s2l.before and cell.system.run.stage == "finetune":
            found.insert(0, (UNTRAINED, f"{cell.system.label}, before", BEFORE))
        options = {
            "test": ("--hypotheses", "--losses"),
            "test_short": ("--short", "--short-losses"),
        }
        words = []
        for ending, label, mark in found:
            name = cell.name + ending
            words += ["--label", f"{name}={label}"]
            for folder in self._whole(cell):
                for test, (hypotheses, losses) in options.items():
                    if test in self.experiment.config.data.tests:
                        words += [hypotheses, f"{name}={folder}/generate.{test}{mark}.txt"]
                        words += [losses, f"{name}={folder}/losses.{test}{mark}.txt"]
        return words

    def print_table(self) -> None:
        """Score what is whole; print the table and where everything is."""
        if not any(map(self._whole, self.every)):
            self.launcher.say("No run is whole yet: no table.")
            return
        super().print_table()
        if not self.args.dry_run:
            found = read_json(self.args.work / "split" / "split.json")
            longest = found["kept"]["train"]["longest_source"]
            print(_WHERE.format(work=self.args.work, longest=longest))


def systems_of(
    experiment: Experiment,
    *,
    encoders: Sequence[str] | None,
    start: str | None = None,
    stretch: str | None = None,
) -> list[ListedSystem]:
    """Return the systems of a comparison.

    Args:
        experiment: the configuration, with a section ``s2l``; its baseline is always among them.
        encoders: registered names; None for the configuration's systems.
        start: ``scratch`` (None too) or ``donor``, of ``encoders``.
        stretch: LOW:HIGH; also each system that takes it under ``--position-stretch``; None: not.
    """
    section = experiment.s2l
    found = section.listed()
    if encoders is None and stretch is None:
        return found
    # It brings torch, which takes seconds.
    from fairseq_floater.experiments.forms import forms_of, with_stretched, within_training

    if encoders is not None:
        found = [system for system in found if system.run.name == section.baseline]
        forms = forms_of(encoders, scratch=start != "donor")
        found += [form for form in forms if form.run.name != section.baseline]
    if stretch is not None:
        found = with_stretched(found, stretch)
    return found if encoders is None else within_training(found, section)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/compare.sh", allow_abbrev=False)
    add_config(parser)
    add_table_options(parser)
    parser.add_argument("--encoders", type=encoder_names, metavar="NAMES")
    parser.add_argument("--start", choices=("scratch", "donor"))
    parser.add_argument("--stretch", metavar="LOW:HIGH")
    parser.add_argument("--seeds", type=seeds)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--donor", type=Path)
    parser.add_argument("--jobs", type=positive)
    add_node_options(parser)
    return parser


def _seeds_of(work: Path) -> list[int]:
    """Return the seeds that have a folder."""
    names = (path.name.removeprefix("seed-") for path in work.glob("seed-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _run(args: argparse.Namespace) -> None:
    experiment, args.work = experiment_of(args), work_of(args)
    looks = args.table or args.status
    args.seeds = args.seeds or (looks and _seeds_of(args.work)) or [experiment.config.seed]
    if args.start is not None and args.encoders is None:
        raise UsageError("`--start` is of `--encoders`: the configuration's systems say theirs.")
    chosen = {name: getattr(args, name) for name in ("encoders", "start", "stretch")}
    every = [Cell(system) for system in systems_of(experiment, **chosen)]
    runner = partial(LengthComparison, experiment=experiment, every=every)
    act(runner, args, select(every, args.only), ())


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(exit_code(lambda: _run(arguments)))
