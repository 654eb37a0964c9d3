"""Run the steps of a run in its folder, under its locks. Every protocol is a subclass of `Job`."""

from __future__ import annotations

import datetime
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.errors import UserError, one_line, sentence
from fairseq_floater.experiments.hardware import Machines, starter
from fairseq_floater.experiments.launch import BusyError, CommandError, Launcher, StoppedError
from fairseq_floater.experiments.locks import Locks
from fairseq_floater.experiments.run_folder import RunFolder, origin
from fairseq_floater.experiments.screen import TrainingLine
from fairseq_floater.files import USER_DIR, file_hash, write_whole

SCRIPTS = USER_DIR.parent / "scripts"
_LOCK_WAIT = 2  # seconds to wait for a lock, which `table2.sh --status` holds while it checks it


def python(module: str, *argv: Any) -> list[Any]:
    return [sys.executable, "-m", module, *argv]


def floater(*argv: Any) -> list[Any]:
    return python("fairseq_floater", *argv)


class Step(NamedTuple):
    """A file of a run, and the command that makes it."""

    result: Path
    argv: list[Any]
    made_of: list[Any] | None = None  # recorded options; with others the result is made again
    log: Path | None = None  # takes the command's output; None for the run's log
    is_output: bool = False  # the command prints the result, which is kept whole or not at all
    outdates: Sequence[Path] = ()  # files made of an earlier result


@dataclass(frozen=True)
class Training:
    stage: str
    path: Path  # the job's folder, or a donor's
    arguments: list[str]
    size: str  # of an update, in tokens or examples
    size_in_words: str
    notes: dict[str, Any]  # further entries of the record, such as the run's settings
    counts: str = "tokens-per-update"  # the key of the configuration that sets `size`
    expected: float | None = None  # updates an epoch in the recipe, shown beside the real ones
    may_end_later: bool = False  # whether a finished run may train further


class Job(ABC):
    """A run in its folder; subclasses define its steps. Part of another run, it gets that run's ``locks``."""

    # Script that messages name if another process runs the job.
    script = "protocol.sh"

    def __init__(
        self, request: Any, path: Path, title: str, launcher: Launcher, locks: Locks | None = None
    ):
        self.request, self.experiment = request, request.experiment
        self.path, self.title, self.launcher = path, title, launcher
        self.locks = locks or Locks(launcher.check_stopped)
        self.folder = RunFolder(path)
        self.log = path / "steps.log"
        self._ran_a_command = self._is_done = False

    @abstractmethod
    def steps(self) -> None:
        """Run every step, or in a dry run print it."""

    def further_steps(self) -> None:  # noqa: B027  most runs have none
        """Run optional steps; if one fails, the run still counts as done."""

    @abstractmethod
    def check_options(self) -> Any:
        """Parse the options of every training as fairseq will, before hours are spent on one."""

    def run(self) -> None:
        """Run every step under the run's lock, and record how it ended.

        Raises:
            BusyError: another process is at work on this run.
            StoppedError: this process was told to stop.
            UserError: a step failed; the reason is in the record too.
        """
        if self.launcher.dry_run:
            self.steps()
            self.further_steps()
            return
        with (
            self.run_lock(),
            self.launcher.screen.system(self.title, self.path),
            self._session(),
        ):
            self.steps()
            with self.folder.changing() as record:
                record["state"] = "done"
                record.pop("reason", None)
            self._is_done = True
            self.further_steps()

    @contextmanager
    def _session(self) -> Iterator[None]:
        begun, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
        session: dict[str, Any] = {"begun": begun.isoformat(timespec="seconds"), **origin()}
        session["threads"] = self.launcher.environment.get("OMP_NUM_THREADS")  # None: all cores
        waited = self.locks.waited
        self._ran_a_command = False
        try:
            yield
        finally:
            if self._ran_a_command:
                waited = self.locks.waited - waited
                session["seconds"] = round(time.monotonic() - clock - waited, 1)
                with suppress(OSError, UserError), self.folder.changing() as record:
                    record.setdefault("sessions", []).append(session)

    def single_run_command(self) -> str:
        """Return the command that makes this run alone; empty if there is none."""
        return ""

    def say(self, text: str) -> None:
        if not self.launcher.dry_run:
            self.launcher.say(f"{self.title}: {text}")

    def command(self, argv: list[Any], **options: Any) -> None:
        """Run a command of this run. The first one also resets the record's state and sets its ``command``.

        ``options`` are those of :meth:`Launcher.run`.
        """
        if not (self._ran_a_command or self._is_done or self.launcher.dry_run):
            with self.folder.changing() as record:
                record.pop("state", None)
                record.pop("reason", None)
                now, sessions = origin()["code"], record.get("sessions", [{}])
                if sessions[-1].get("code", now) != now:
                    self.say("the code has changed since this run's last session")
                if command := self.single_run_command():
                    record["command"] = command
        self._ran_a_command = True
        options = {"name": self.title, "log": self.log, **options}
        self.launcher.run(argv, locks=self.locks.descriptors, **options)

    def make_data(self, argv: list[Any]) -> None:
        """Run a command that makes data for several runs; it does not count as work of this run."""
        log = self.request.work / "data.log"
        self.launcher.run(argv, name="data", log=log, locks=self.locks.descriptors)

    def make(self, step: Step) -> bool:
        """Make a step's result if it is missing or was made with other options.

        Returns:
            Whether it was made now; False in a dry run, which prints every command.
        """
        if self.launcher.dry_run:
            self.command(step.argv, output=step.result if step.is_output else None)
            return False
        if self.is_made(step):
            return False
        for path in step.outdates:
            path.unlink(missing_ok=True)
        log = step.log or self.log
        if step.is_output:
            write_whole(step.result, lambda part: self.command(step.argv, output=part, log=log))
        else:
            self.command(step.argv, log=log)
        if step.made_of is not None:
            with self.folder.changing() as record:
                record.setdefault("made", {})[step.result.name] = list(map(str, step.made_of))
        return True

    def is_made(self, step: Step) -> bool:
        """Return whether a step's result exists and, if its options are recorded, was made with the same."""
        if not step.result.is_file() or step.made_of is None:
            return step.result.is_file()
        made_of = list(map(str, step.made_of))
        return bool(self.folder.read().get("made", {}).get(step.result.name, made_of) == made_of)

    def train(self, training: Training, machines: Machines) -> None:
        """Train until fairseq is done; resume from the last whole checkpoint.

        Raises:
            ReportError: the training was begun with other arguments.
            StoppedError: the training was told to stop, and has saved.
            UserError: the training failed.
        """
        folder, path = RunFolder(training.path), training.path
        name = self.title if path == self.path else path.name
        command: list[Any] = starter(path.name, machines)
        command += python("fairseq_cli.train", *training.arguments)
        if self.launcher.dry_run:
            self.command(command)
            return
        path.mkdir(parents=True, exist_ok=True)
        is_longer = folder.check_same(
            training.stage,
            training.arguments,
            training.size,
            training.counts,
            may_end_later=training.may_end_later,
        )
        if folder.read().get("trained") and not is_longer:
            self.launcher.say(f"{name}: trained already")
            return
        beginning = folder.resume(training.stage, training.arguments, machines.world)
        self.launcher.say(f"{name}: {beginning}")
        with folder.changing() as record:
            record.pop("trained", None)
            record["arguments"][training.stage] = training.arguments
            record["tokens"][training.stage] = training.size
            record["processes"] = machines.world
            record |= training.notes
        self.launcher.say(
            f"{name}: training, {training.size_in_words}; log in {path / 'train.log'}"
        )
        line = TrainingLine(self.launcher.screen, name, training.arguments, training.expected)
        self._watch(command, path, line)
        with folder.changing() as record:
            record["trained"] = True
            record["updates_an_epoch"] = line.updates_an_epoch or record.get("updates_an_epoch")

    def _watch(self, command: list[Any], path: Path, line: TrainingLine) -> None:
        stopped, failure = path / "checkpoints" / "stopped", None
        # Remove the file of an earlier stop, else a failure before the first update would look like a stop.
        stopped.unlink(missing_ok=True)
        try:
            self.command(command, name=line.name, log=path / "train.log", line=line)
        except CommandError as error:
            failure = error
        finally:
            line.close()
        # This comes first, because torchrun reports failure even if its processes stopped cleanly.
        if stopped.is_file():
            self.launcher.say(
                f"{line.name}: told to stop, and saved; run the same command to go on."
            )
            raise StoppedError
        if failure is not None:
            raise failure

    @contextmanager
    def run_lock(self) -> Iterator[None]:
        """Hold the run's lock. Record the reason of a failure, unless all steps are done already."""
        with self.locks.hold(self.path / ".lock", _LOCK_WAIT) as is_held:
            if not is_held:
                self.launcher.say(f"Another {self.script} is running in {self.path}.")
                raise BusyError
            try:
                yield
            except Exception as error:
                with suppress(OSError, UserError), self.folder.changing() as record:
                    if record.get("state") != "done":
                        record |= {"state": "failed", "reason": one_line(sentence(error))}
                raise

    @contextmanager
    def shared_lock(self, path: Path) -> Iterator[None]:
        """Lock what several runs share, such as data: the first run makes it, the others wait."""
        if self.launcher.dry_run:
            yield
            return
        waiting = f"another run is making what this one needs ({path.name}): waiting for it"
        with self.locks.hold(path, float("inf"), lambda: self.say(waiting)):
            yield

    def check_start(self, start: Path, *, begun: bool) -> None:
        """Record the checkpoint that the run starts from; if the run has ``begun``, check it.

        Raises:
            UserError: the run began from another checkpoint, perhaps of the same name.
        """
        if self.launcher.dry_run or not start.is_file():
            return
        status = start.stat()
        checksum = _hash(start, status.st_size, status.st_mtime_ns)
        if begun and self.folder.read().get("donor_sha256", checksum) != checksum:
            raise UserError(
                f"{self.path} was not started from {start} as it is now: use another --work, or "
                "remove the folder."
            )
        if not begun:
            with self.folder.changing() as record:
                record["donor_sha256"] = checksum


@cache
def _hash(path: Path, size: int, changed: int) -> str:
    """Return the checksum of a file, cached: many runs start from the same file of a gigabyte."""
    return file_hash(path)
