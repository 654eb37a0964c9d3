"""The short-to-long experiment (`scripts/s2l.sh`): split, train on the short part, score by bins."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.experiments.commands import (
    add_config,
    experiment_from_args,
    run_command,
    seeds_of,
    work_of,
)
from fairseq_floater.experiments.config import s2l_systems
from fairseq_floater.experiments.hardware import Machines, visible_gpus
from fairseq_floater.experiments.job import Run, floater
from fairseq_floater.experiments.launch import Launcher, StoppedError, side_by_side, use_gpus
from fairseq_floater.experiments.protocol import SCRIPTS, Protocol
from fairseq_floater.experiments.screen import Screen
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.records import read_json

_MOST_JOBS = 4  # side by side on a CPU, unless more are asked for
# Small models share one thread among cores badly; side by side they use them all.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run_all(protocols: Sequence[Protocol], jobs: int, experiment: str) -> None:
    """Run several systems, so many at a time.

    Args:
        experiment: how messages call all of them.

    Raises:
        StoppedError: this process was told to stop.
        UserError: a system failed; its reason has been printed.
    """
    launcher = protocols[0].launcher

    def one(protocol: Protocol) -> None:
        try:
            protocol.run()
        except (UserError, OSError) as error:
            launcher.say(f"{protocol.title}: {error}")
            raise

    if launcher.dry_run:
        for protocol in protocols:
            protocol.run()
        return
    failures = side_by_side(jobs, [partial(one, protocol) for protocol in protocols])
    launcher.check_stopped()
    for failure in failures:
        if isinstance(failure, StoppedError) or not isinstance(
            failure, (UserError, OSError, SystemExit)
        ):
            raise failure
    if failures:
        raise UserError(
            f"The {experiment} stopped: a system above failed. Run it again to go on from there."
        )


class ShortToLong:
    """The steps of the experiment, in order: :meth:`run`.

    Args:
        experiment: a configuration with a section ``s2l``.
        work: where everything goes.
        seeds: of training; every system is trained under each.
        launcher: starts the commands.
        machines: what one training runs on.
        jobs: trainings side by side.
    """

    def __init__(
        self,
        experiment: Experiment,
        work: Path,
        seeds: Sequence[int],
        launcher: Launcher,
        *,
        machines: Machines,
        jobs: int,
    ):
        self.experiment, self.work, self.seeds, self.launcher = experiment, work, seeds, launcher
        self.machines, self.jobs = machines, jobs
        self.systems = s2l_systems(experiment.config["s2l"])
        self.split, self.data = work / "split", work / "data"

    def run(self, raw: Path | None) -> None:
        """Run every step on parallel text, or on the built-in corpus."""
        self._prepare(raw)
        protocols = [
            Protocol(self._asked(system.run, seed), self.launcher)
            for seed in self.seeds
            for system in self.systems
        ]
        run_all(protocols, self.jobs, "experiment")
        self._score()

    def _arguments(self, stage: str) -> list[str]:
        return self.experiment.arguments(stage, System(PLAIN), work=str(self.work))

    def _command(self, words: Sequence[Any], output: Path | None = None) -> None:
        log = self.work / "steps.log"
        if not self.launcher.dry_run:
            self.work.mkdir(parents=True, exist_ok=True)
        self.launcher.run(words, name=self.work.name, log=log, output=output)

    def _prepare(self, raw: Path | None) -> None:
        if raw is None:
            if "numbers" not in self.experiment.config["data"]:
                raise UsageError(
                    f"{self.experiment.path} is for your text: pass its folder with --raw."
                )
            raw = self.work / "numbers"
            self._command(floater("numbers", raw, *self._arguments("numbers")))
        self._command(floater("s2l", "split", raw, self.split, *self._arguments("split")))
        words = [self.split, self.data, *self._arguments("prepare")]
        self._command(["bash", SCRIPTS / "prepare_text.sh", *words])

    def _asked(self, system: System, seed: int) -> Run:
        return Run(
            self.experiment,
            system,
            self.work / f"seed-{seed}",
            data=self.data,
            seed=seed,
            machines=self.machines,
            losses=True,
        )

    def _score(self) -> None:
        """Score bin by bin; print the table and where everything is."""
        table, part = self.work / "s2l.md", self.work / "s2l.md.part"
        self._command(floater("s2l", "score", self.split, *self._scored()), output=part)
        if self.launcher.dry_run:
            return
        part.replace(table)
        longest = read_json(self.split / "split.json")["kept"]["train"]["longest_source"]
        print(table.read_text(encoding="utf-8"), end="")
        print(f"""
Longest training source: {longest} tokens. Rows of `learned` past the trained length were never trained.
Table   {table}, {self.work}/s2l.json
Figure  {self.work}/s2l.png, {self.work}/s2l.svg
Split   {self.split}: counts and overlap in split.json, the origin of each test pair in test.tsv
Runs    {self.work}/seed-<seed>/<system>""")

    def _scored(self) -> list[str | Path]:
        """Return the options of `floater s2l score`."""
        words: list[str | Path] = []
        for system in self.systems:
            words += ["--label", f"{system.run.name}={system.label}"]
        has_short = "test_short" in self.experiment.tests
        for name, folder in self._folders():
            words += ["--hypotheses", f"{name}={folder}/generate.test.txt"]
            words += ["--losses", f"{name}={folder}/losses.test.txt"]
            if has_short:
                words += ["--short", f"{name}={folder}/generate.test_short.txt"]
                words += ["--short-losses", f"{name}={folder}/losses.test_short.txt"]
        settings = dict(line.split("=", 1) for line in self._arguments("settings"))
        if settings["baseline"]:
            words += ["--baseline", settings["baseline"]]
        words += ["--max-len-a", settings["max_len_a"], "--max-len-b", settings["max_len_b"]]
        words += ["--json", self.work / "s2l.json"]
        return [*words, "--figure", self.work / "s2l.png", self.work / "s2l.svg"]

    def _folders(self) -> list[tuple[str, Path]]:
        names = [system.run.name for system in self.systems]
        return [(n, self.work / f"seed-{seed}" / n) for seed in self.seeds for n in names]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/s2l.sh", allow_abbrev=False)
    add_config(parser)
    parser.add_argument("--seeds", default="")
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--work")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--dry-run", action="store_true")
    return parser


def _run(args: argparse.Namespace) -> None:
    experiment = experiment_from_args(args)
    seeds = seeds_of(args.seeds or str(experiment.seed))
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs must be a number of at least 1, but is {args.jobs}.")
    experiment.arguments("systems", System(PLAIN))  # raises where there is no `s2l`
    machines = Machines(len(visible_gpus()) if args.processes is None else args.processes)
    cores = len(os.sched_getaffinity(0))
    jobs = args.jobs or (min(cores, _MOST_JOBS) if machines.on_cpu else 1)
    environment = {} if args.dry_run else use_gpus(machines)
    if machines.on_cpu and jobs > 1:
        environment |= ONE_THREAD
    screen = Screen(len(seeds) * len(experiment.config["s2l"]["systems"]), jobs)
    launcher = Launcher(dry_run=args.dry_run, screen=screen, environment=environment)
    work = work_of(args)
    with launcher.signals():
        found = ShortToLong(experiment, work, seeds, launcher, machines=machines, jobs=jobs)
        found.run(args.raw)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m fairseq_floater.experiments.short_to_long`; return the exit code."""
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
