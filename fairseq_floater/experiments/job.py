"""Hold what a run is asked to do, where it lies, its locks, and how its commands start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UserError, one_line, sentence
from fairseq_floater.experiments.hardware import ONE_CPU, Machines
from fairseq_floater.experiments.launch import BusyError, Launcher
from fairseq_floater.experiments.run_folder import RunFolder, try_lock
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System

_LOOKING = 2  # seconds in which `table2.sh --status` has looked at a lock
_POLL = 0.5  # seconds between two tries of a lock that another run holds


def python(module: str, *words: Any) -> list[Any]:
    """Return a command of this Python."""
    return [sys.executable, "-m", module, *words]


def floater(*words: Any) -> list[Any]:
    """Return a command of ours."""
    return python("fairseq_floater", *words)


@dataclass(frozen=True)
class Run:
    """A request: one system of an experiment.

    Args:
        experiment: the configuration.
        system: the encoder, how it enters, and from where it starts.
        work: where everything goes.
        raw: parallel text to make data of.
        data: data that are made; made there where they are WMT14's.
        donor: its folder; None for ``work/plain``.
        seed: of training; None for the configuration's.
        machines: what to train on.
        launch: starts the words after it once on each of several nodes.
        rendezvous: host and port of one of them.
        losses: also compute the loss of every test sentence.
        preparation: further options of prepare_wmt14.sh.
    """

    experiment: Experiment
    system: System
    work: Path
    raw: Path | None = None
    data: Path | None = None
    donor: Path | None = None
    seed: int | None = None
    machines: Machines = ONE_CPU
    launch: str = ""
    rendezvous: str = ""
    losses: bool = False
    preparation: tuple[str, ...] = ()


class Job:
    """A run in its folder; :class:`fairseq_floater.experiments.protocol.Protocol` has the steps.

    Args:
        run: what is asked for.
        launcher: starts the commands.
    """

    def __init__(self, run: Run, launcher: Launcher):
        self.asked, self.launcher = run, launcher
        self.experiment, self.stage = run.experiment, run.system.stage
        self.data = run.data or run.work / "data"
        self.donor = run.donor or run.work / PLAIN
        self.settings = run.experiment.settings(run.system, run.machines, run.seed)
        name = run.system.name
        self.title = name if run.seed is None else f"{name}, seed {run.seed}"
        self.path = self.donor if self.stage == "donor" else run.work / name
        self.folder = RunFolder(self.path)
        self.log = self.path / "steps.log"
        self.locks: list[int] = []

    def arguments(self, stage: str) -> list[str]:
        return self.experiment.arguments(
            stage,
            self.asked.system,
            data=str(self.data / "bin"),
            work=str(self.asked.work),
            machines=self.asked.machines,
            seed=self.asked.seed,
            donor=None if self.asked.donor is None else str(self.asked.donor),
        )

    def say(self, text: str) -> None:
        if not self.launcher.dry_run:
            self.launcher.say(f"{self.title}: {text}")

    def command(self, words: list[Any], **places: Any) -> None:
        places = {"name": self.title, "log": self.log, **places}
        self.launcher.run(words, locks=self.locks, **places)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the run's lock; leave a failure's reason in the record."""
        for folder in (self.path, self.asked.work, self.donor.parent):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                raise UserError(f"The folder {folder} cannot be made.") from None
        with self._locked(self.path / ".lock", seconds=_LOOKING) as lock:
            if lock is None:
                self.launcher.say(f"Another protocol.sh is at work on {self.path}.")
                raise BusyError(self.path)
            try:
                with self.folder.changing() as record:
                    for key in ("state", "reason"):
                        record.pop(key, None)
                yield
            except Exception as error:
                with suppress(OSError, UserError), self.folder.changing() as record:
                    record |= {"state": "failed", "reason": one_line(sentence(error))}
                raise

    @contextmanager
    def alone(self, path: Path) -> Iterator[None]:
        """Hold the lock of what several systems share; the first one makes it, the others wait."""
        if self.launcher.dry_run:
            yield
            return
        waiting = f"another run is making what this one needs ({path.name}): waiting for it"
        with self._locked(path, seconds=float("inf"), waiting=waiting):
            yield

    @contextmanager
    def _locked(self, path: Path, seconds: float, waiting: str = "") -> Iterator[int | None]:
        """Hold a lock, which commands inherit; None where somebody else has it after so long."""
        lock = try_lock(path)
        if lock is None and waiting:
            self.say(waiting)
        while lock is None and seconds > 0:
            self.launcher.check_stopped(_POLL)
            seconds -= _POLL
            lock = try_lock(path)
        if lock is None:
            yield None
            return
        self.locks.append(lock)
        try:
            yield lock
        finally:
            self.locks.remove(lock)
            os.close(lock)
