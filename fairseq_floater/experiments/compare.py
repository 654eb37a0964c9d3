"""Compare systems: make data, run each system under each seed, score (`scripts/compare.sh`, `s2l.sh`).

If the configuration splits its text by length (section `s2l`), scores are by source length, else for whole
test sets. A run is in ``WORK/seed-<n>/<system>``. The table shows the finished runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.report import UNTRAINED
from fairseq_floater.experiments.cells import Cell, progress_of, seconds_left, select
from fairseq_floater.experiments.commands import ONE_THREAD, work_of
from fairseq_floater.experiments.config import ListedSystem
from fairseq_floater.experiments.forms import systems_of
from fairseq_floater.experiments.hardware import Machines, machines_from_args
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import WARM_START_MARK, Protocol
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import duration
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.tables import Table
from fairseq_floater.experiments.variants import Variant, check_variants
from fairseq_floater.records import read_json

_MOST_JOBS = 4  # trainings at a time on a CPU, unless --jobs says more
# Above the maximum, scoring two hundred systems takes many minutes.
_FEWEST_RESAMPLES, _MOST_RESAMPLES = 1000, 10_000
# Resamples for each comparison with the baseline. The smallest p-value after Holm's correction is then 0.01;
# with the maximum and five hundred systems, 0.05.
_RESAMPLES_A_SYSTEM = 100
_FROM_DONOR = (
    "All systems start from a donor with a sinusoid, as the baseline does. `--start scratch` trains all "
    "from random parameters, which is fairer to encoders that replace the sinusoid."
)
_WHERE = """
Table   {work}/{table}.md, {work}/{table}.json
Figure  {work}/{table}.png, {work}/{table}.svg
Runs    {work}/seed-<seed>/<system>"""
_SPLIT = """
Longest training source: {longest} tokens. Rows of `learned` past the trained length were never trained.
Split   {work}/split: counts and overlap in split.json, the origin of each test pair in test.tsv"""


class ComparisonTable(Table):
    """The systems of a comparison and their scores, by source length or for whole test sets.

    Args:
        args: the command line. It may select some of the systems to run; the table has all of them.
    """

    def __init__(self, args: argparse.Namespace):
        self.experiment, args.work = Experiment(args.config), work_of(args)
        if args.by_length:
            _ = self.experiment.s2l  # raises ConfigError if there is no such section
        only_shows = args.table or args.status
        seed = self.experiment.config.seed
        self.seeds = args.seeds or (only_shows and _seeds_of(args.work)) or [seed]
        if args.start is not None and args.encoders is None:
            raise UsageError(
                "`--start` needs `--encoders`: the configuration sets its systems' starts."
            )
        self.systems, self.baseline = systems_of(
            self.experiment,
            encoders=args.encoders,
            start=args.start,
            stretch=args.stretch,
            also=args.also,
        )
        systems = [entry.system for entry in self.systems]
        # Scoring refuses a file twice.
        self.variants: list[Variant] = [*dict.fromkeys(args.variants)]
        self.separator = self.experiment.config.data.separator
        check_variants(self.variants, systems, self.separator)
        stages = {entry.system.name: entry.system.stage for entry in self.systems}
        if args.donor is not None and "donor" in stages.values():
            raise UsageError(
                f"{args.config}: with `--donor` the system `--encoder {PLAIN}` has one run, not one for "
                "each seed; leave one of the two out."
            )
        machines = machines_from_args(args, self.experiment.config.budget)
        cells, on_cpu = select(list(self._cells(args, machines)), args.only), machines.on_cpu
        jobs = args.jobs or (min(len(os.sched_getaffinity(0)), _MOST_JOBS) if on_cpu else 1)
        self.by_length = self.experiment.config.s2l is not None
        super().__init__(
            args,
            "s2l" if self.by_length else "compare",
            cells,
            self._donors(args) if any(stages[c.name] == "finetune" for c in cells) else (),
            jobs=jobs,
            environment=ONE_THREAD if on_cpu and jobs > 1 else None,
            machines=machines,
        )

    def _cells(self, args: argparse.Namespace, machines: Machines) -> Iterator[Cell]:
        for seed in self.seeds:
            for entry in self.systems:
                request = RunRequest(
                    self.experiment,
                    entry.system,
                    args.work / f"seed-{seed}",
                    data=args.work / "data",
                    donor=args.donor,
                    seed=seed,
                    machines=machines,
                    losses=True,
                    variants=tuple(self._variants_of(entry)),
                )
                name = entry.system.name
                yield Cell(name, request.work / name, partial(Protocol, request), seed)

    def _variants_of(self, entry: ListedSystem) -> list[Variant]:
        return [variant for variant in self.variants if variant.suits(entry.system, self.separator)]

    def _donors(self, args: argparse.Namespace) -> list[Cell]:
        if args.donor is not None:
            return [Cell(PLAIN, args.donor, None, lock=args.donor.parent / ".donor.lock")]
        folders = {seed: args.work / f"seed-{seed}" for seed in self.seeds}
        return [
            Cell(PLAIN, folder / PLAIN, None, seed, folder / ".donor.lock")
            for seed, folder in folders.items()
        ]

    def left(self) -> str:
        seconds = seconds_left(self.cells)
        if not seconds:
            return ""
        states = [progress_of(cell.folder).state for cell in self.cells]
        at_once = self.jobs
        if self.args.status and not self.args.jobs:
            # --status counts the runs that are running now, whatever --jobs they were started with.
            at_once = states.count("running") or self.jobs
        unfinished = len(states) - states.count("done")
        at_once = min(at_once, max(unfinished, 1))
        return f"about {duration(seconds / at_once)} left in all, {at_once} at a time"

    def run(self) -> None:
        launcher, experiment = self.launcher, self.experiment
        if launcher.dry_run:
            names = ("PYTHONPATH", "FLOATER_USER_DIR", *ONE_THREAD)
            values = {name: launcher.environment.get(name) for name in names}
            launcher.run(["export", *(f"{k}={v}" for k, v in values.items() if v)])
        else:
            if self.args.encoders and not self.args.start and not self.systems[0].system.scratch:
                self.launcher.say(_FROM_DONOR)
            # An option that one system refuses stops all of them, before the first one trains.
            for cell in self.cells:
                if cell.job is not None and cell.seed == self.cells[0].seed:
                    cell.job(launcher).check_options()
        request = RunRequest(
            experiment, System(PLAIN), self.work, raw=self.args.raw, task=self.args.task
        )
        data = Protocol(request, launcher)
        if self.by_length:
            data.prepare_split()
        else:
            data.prepare_data()
        super().run()

    def _finished_runs(self, system: System) -> list[Path]:
        folders = [self.work / f"seed-{seed}" / system.name for seed in self.seeds]
        dry_run = self.launcher.dry_run
        return [f for f in folders if dry_run or RunFolder(f).read().get("state") == "done"]

    def command(self) -> list[Any]:
        folders = {entry: self._finished_runs(entry.system) for entry in self.systems}
        runs = {entry: paths for entry, paths in folders.items() if paths}
        argv = self._length_command(runs) if self.by_length else self._test_set_command(runs)
        if self.baseline in [entry.system.name for entry in runs]:
            argv += ["--baseline", self.baseline]
        elif self.baseline:
            self.launcher.say(
                f"The table has no p-values: the baseline {self.baseline} is not finished under these seeds."
            )
        settings = self.experiment.settings(System(PLAIN))
        argv += ["--max-len-a", settings["max_len_a"], "--max-len-b", settings["max_len_b"]]
        argv += self.experiment.metrics()
        if self.args.exact_match and "--exact-match" not in argv:
            argv.append("--exact-match")
        wanted = _RESAMPLES_A_SYSTEM * argv.count("--label")
        resamples = min(max(wanted, _FEWEST_RESAMPLES), _MOST_RESAMPLES)
        argv += ["--bootstrap", str(resamples), "--json", self.work / f"{self.name}.json"]
        return [*argv, "--figure", *(self.work / f"{self.name}.{e}" for e in ("png", "svg"))]

    def _test_set_command(self, runs: dict[ListedSystem, list[Path]]) -> list[Any]:
        argv = floater("compare", self.work / "data", "--tests", *self.experiment.config.data.tests)
        for entry, folders in runs.items():
            argv += ["--label", f"{entry.system.name}={entry.label}"]
            names = [entry.system.name]
            for variant in self._finished_variants(entry, folders):
                names.append(entry.system.name + variant.mark)
                argv += ["--label", f"{names[-1]}={entry.label}, {variant.name}"]
            argv += [w for name in names for f in folders for w in ("--run", f"{name}={f}")]
        return argv

    def _length_command(self, runs: dict[ListedSystem, list[Path]]) -> list[Any]:
        options = (o for entry, folders in runs.items() for o in self._file_options(entry, folders))
        return floater("s2l", "score", self.work / "split", *options)

    def _file_options(self, entry: ListedSystem, folders: list[Path]) -> Iterator[str]:
        """Yield the options that name the results of a system and of its warm start under every seed."""
        models = [("", entry.label, "", True)]
        if self.experiment.s2l.before and entry.system.stage == "finetune":
            models.insert(0, (UNTRAINED, f"{entry.label}, before", WARM_START_MARK, True))
        for variant in self._finished_variants(entry, folders):
            label, mark = f"{entry.label}, {variant.name}", variant.mark
            models.append((mark, label, mark, variant.changes_losses))
        options = {
            "test": ("--hypotheses", "--losses"),
            "test_short": ("--short", "--short-losses"),
        }
        for ending, label, mark, has_losses in models:
            name = entry.system.name + ending
            yield from ("--label", f"{name}={label}")
            for folder in folders:
                for test, (hypotheses, losses) in options.items():
                    if test in self.experiment.config.data.tests:
                        yield from (hypotheses, f"{name}={folder}/generate.{test}{mark}.txt")
                        if has_losses:  # else the system's loss would have two rows
                            yield from (losses, f"{name}={folder}/losses.{test}{mark}.txt")

    def _finished_variants(self, entry: ListedSystem, folders: list[Path]) -> Iterator[Variant]:
        """Yield the variants with which all runs in ``folders`` have translated; ``--only`` may skip some."""
        tests = self.experiment.config.data.tests
        for variant in self._variants_of(entry):
            files = (f / f"generate.{test}{variant.mark}.txt" for f in folders for test in tests)
            if self.launcher.dry_run or all(file.is_file() for file in files):
                yield variant

    def why_no_table(self) -> str:
        is_scored = any(self._finished_runs(entry.system) for entry in self.systems)
        return "" if is_scored else "No run is finished yet: no table."

    def print(self) -> None:
        super().print()
        if self.launcher.dry_run or self.why_no_table():
            return
        print(_WHERE.format(work=self.work, table=self.name))
        if others := {*_seeds_of(self.work)} - {*self.seeds}:
            print(
                f"Seeds   without --seeds, --table also scores {', '.join(map(str, sorted(others)))}"
            )
        if self.by_length:
            shape = {"kept": {"train": {"longest_source": int}}}
            longest = read_json(self.work / "split" / "split.json", shape)["kept"]["train"]
            print(_SPLIT.format(work=self.work, longest=longest["longest_source"]))


def _seeds_of(work: Path) -> list[int]:
    names = (path.name.removeprefix("seed-") for path in work.glob("seed-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def run(args: argparse.Namespace) -> None:
    ComparisonTable(args).act()
