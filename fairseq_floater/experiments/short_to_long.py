"""Run the short-to-long experiment (`scripts/s2l.sh`): split, train on the short part, score by bins."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError, exit_code
from fairseq_floater.experiments.commands import (
    ONE_THREAD,
    add_config,
    experiment_of,
    run_all,
    seeds,
    work_of,
)
from fairseq_floater.experiments.hardware import Machines, all_gpus, use_gpus
from fairseq_floater.experiments.job import SCRIPTS, floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.protocol import Protocol, Run
from fairseq_floater.experiments.screen import Screen
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import write_whole
from fairseq_floater.records import read_json
from fairseq_floater.verbs import positive

_MOST_JOBS = 4  # side by side on a CPU, unless more are asked for
_WHERE = """
Longest training source: {longest} tokens. Rows of `learned` past the trained length were never trained.
Table   {work}/s2l.md, {work}/s2l.json
Figure  {work}/s2l.png, {work}/s2l.svg
Split   {work}/split: counts and overlap in split.json, the origin of each test pair in test.tsv
Runs    {work}/seed-<seed>/<system>"""


class ShortToLong:
    """The steps of the experiment, in order: :meth:`run`.

    Args:
        args: the command line; its configuration has a section ``s2l``.
    """

    def __init__(self, args: argparse.Namespace):
        self.experiment, self.work, self.raw = experiment_of(args), work_of(args), args.raw
        self.systems = self.experiment.s2l.listed()
        self.seeds = args.seeds or [self.experiment.config.seed]
        self.machines = Machines(all_gpus(args.processes))
        cores = len(os.sched_getaffinity(0))
        self.jobs = args.jobs or (min(cores, _MOST_JOBS) if self.machines.on_cpu else 1)
        environment = {} if args.dry_run else use_gpus(self.machines)
        if self.machines.on_cpu and self.jobs > 1:
            environment |= ONE_THREAD
        screen = Screen(len(self.seeds) * len(self.systems))
        self.launcher = Launcher(dry_run=args.dry_run, screen=screen, environment=environment)
        self.split, self.data = self.work / "split", self.work / "data"

    def run(self) -> None:
        """Run every step on parallel text, or on the built-in corpus."""
        with self.launcher.signals():
            self._prepare()
            runs = [self._asked(s.run, seed) for seed in self.seeds for s in self.systems]
            run_all([Protocol(run, self.launcher) for run in runs], self.jobs, "experiment")
            self._score()

    def _arguments(self, stage: str) -> list[str]:
        return self.experiment.arguments(stage, System(PLAIN), work=str(self.work))

    def _command(self, words: Sequence[Any], output: Path | None = None) -> None:
        log = self.work / "steps.log"
        if not self.launcher.dry_run:
            self.work.mkdir(parents=True, exist_ok=True)
        self.launcher.run(words, name=self.work.name, log=log, output=output)

    def _prepare(self) -> None:
        raw = self.raw
        if raw is None:
            if self.experiment.config.data.numbers is None:
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
        command, table = floater("s2l", "score", self.split, *self._scored()), self.work / "s2l.md"
        if self.launcher.dry_run:
            self._command(command)
            return
        write_whole(table, lambda part: self._command(command, output=part))
        longest = read_json(self.split / "split.json")["kept"]["train"]["longest_source"]
        print(table.read_text(encoding="utf-8"), end="")
        print(_WHERE.format(work=self.work, longest=longest))

    def _scored(self) -> list[str | Path]:
        """Return the options of `floater s2l score`."""
        words: list[str | Path] = []
        for system in self.systems:
            words += ["--label", f"{system.run.name}={system.label}"]
        has_short = "test_short" in self.experiment.config.data.tests
        for name, folder in self._folders():
            words += ["--hypotheses", f"{name}={folder}/generate.test.txt"]
            words += ["--losses", f"{name}={folder}/losses.test.txt"]
            if has_short:
                words += ["--short", f"{name}={folder}/generate.test_short.txt"]
                words += ["--short-losses", f"{name}={folder}/losses.test_short.txt"]
        settings = self.experiment.settings(System(PLAIN))
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
    parser.add_argument("--seeds", type=seeds)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--jobs", type=positive)
    parser.add_argument("--dry-run", action="store_true")
    return parser


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(exit_code(lambda: ShortToLong(arguments).run()))
