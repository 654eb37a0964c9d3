"""Hold a run's folder and locks, and start its commands: what every protocol is built on."""

from __future__ import annotations

import datetime
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UserError, one_line, sentence
from fairseq_floater.experiments.launch import BusyError, Launcher
from fairseq_floater.experiments.locks import try_lock
from fairseq_floater.experiments.run_folder import RunFolder, origin
from fairseq_floater.files import USER_DIR, file_hash

SCRIPTS = USER_DIR.parent / "scripts"
_LOOKING = 2  # seconds in which `table2.sh --status` has looked at a lock
_POLL = 0.5  # seconds between two tries of a lock that another run holds


def python(module: str, *words: Any) -> list[Any]:
    """Return a command of this Python."""
    return [sys.executable, "-m", module, *words]


def floater(*words: Any) -> list[Any]:
    """Return a command of ours."""
    return python("fairseq_floater", *words)


class Job(ABC):
    """A run in its folder; its subclasses have the steps.

    Args:
        path: its folder.
        title: how messages call it.
        launcher: starts the commands.
    """

    # Whoever else is at work there, for messages.
    script = "protocol.sh"

    def __init__(self, path: Path, title: str, launcher: Launcher):
        self.path, self.title, self.launcher = path, title, launcher
        self.folder = RunFolder(path)
        self.log = path / "steps.log"
        self.locks: list[int] = []
        self._own: tuple[Path, int] | None = None  # the run's lock and its descriptor
        self._has_worked = False

    @abstractmethod
    def steps(self) -> None:
        """Run every step, or in a dry run print it."""

    def run(self) -> None:
        """Run every step under the run's lock, and record how it ended.

        Raises:
            BusyError: another process is at work on this run.
            StoppedError: this process was told to stop.
            UserError: a step failed; the reason is in the record too.
        """
        if self.launcher.dry_run:
            self.steps()
            return
        with self.at_work(), self.launcher.screen.system(self.title, self.path):
            with self._session():
                self.steps()
            with self.folder.changing() as record:
                record["state"] = "done"

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Record where, when and by what commands were run, unless everything was whole already."""
        begun, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
        session: dict[str, Any] = {"begun": begun.isoformat(timespec="seconds"), **origin()}
        self._has_worked = False
        try:
            yield
        finally:
            if self._has_worked:
                session["seconds"] = round(time.monotonic() - clock, 1)
                with suppress(OSError, UserError), self.folder.changing() as record:
                    record.setdefault("sessions", []).append(session)

    def own_command(self) -> str:
        """Return the command that makes this run alone; empty where there is none."""
        return ""

    def within(self, other: Job) -> None:
        """Hold the locks of another run, as a part of which this one's steps are run."""
        self.locks, self._own = other.locks, other._own

    def say(self, text: str) -> None:
        if not self.launcher.dry_run:
            self.launcher.say(f"{self.title}: {text}")

    def command(self, words: list[Any], **places: Any) -> None:
        """Run a command of this run; the first one puts :meth:`own_command` into the record."""
        if not self._has_worked and not self.launcher.dry_run and (own := self.own_command()):
            with self.folder.changing() as record:
                record["command"] = own
        self._has_worked = True
        self.run_unrecorded(words, **places)

    def run_unrecorded(self, words: list[Any], **places: Any) -> None:
        """Run a command that may find its result whole, as those that make data do."""
        places = {"name": self.title, "log": self.log, **places}
        self.launcher.run(words, locks=self.locks, **places)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the run's lock; leave a failure's reason in the record."""
        make_folder(self.path)
        path = self.path / ".lock"
        with self._locked(path, seconds=_LOOKING) as lock:
            if lock is None:
                self.launcher.say(f"Another {self.script} is at work on {self.path}.")
                raise BusyError
            self._own = path, lock
            before: dict[str, Any] = {}
            try:
                with self.folder.changing() as record:
                    before = {k: record.pop(k) for k in ("state", "reason") if k in record}
                yield
            except BaseException as error:
                found: dict[str, Any] = {}
                if before.get("state") == "done" and not self._has_worked:
                    found = before
                elif isinstance(error, Exception):
                    found = {"state": "failed", "reason": one_line(sentence(error))}
                if found:
                    with suppress(OSError, UserError), self.folder.changing() as record:
                        record |= found
                raise

    @contextmanager
    def alone(self, path: Path) -> Iterator[None]:
        """Hold the lock of what several systems share; the first one makes it, the others wait."""
        if self.launcher.dry_run:
            yield
            return
        make_folder(path.parent)
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

    def is_made(self, result: Path, words: Sequence[Any]) -> bool:
        """Return whether a result is there, made with ``words`` as far as that is recorded."""
        words = list(map(str, words))
        made = self.folder.read().get("made", {})
        return result.is_file() and bool(made.get(result.name, words) == words)

    def note_made(self, result: Path, words: Sequence[Any]) -> None:
        """Note what a result was made with, besides what is recorded otherwise."""
        if not self.launcher.dry_run:
            with self.folder.changing() as record:
                record.setdefault("made", {})[result.name] = list(map(str, words))

    def check_start(self, start: Path, *, begun: bool) -> None:
        """Note which checkpoint the run starts from; where it has ``begun``, make sure that it is that one.

        Raises:
            UserError: it was another one; also of the same name.
        """
        if self.launcher.dry_run or not start.is_file():
            return
        place = start.stat()
        found = _hash(start, place.st_size, place.st_mtime_ns)
        if begun and self.folder.read().get("donor_sha256", found) != found:
            raise UserError(
                f"{self.path} was started from another donor than {start}: use another --work, or "
                "remove the folder."
            )
        if not begun:
            with self.folder.changing() as record:
                record["donor_sha256"] = found

    def check_same_disk(self) -> None:
        """Notice a lost mount: fairseq makes its folder anew, the lock is on the disk that went."""
        if self._own is None:
            return
        path, lock = self._own
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(lock)):
                return
        raise UserError(
            f"{path.parent} is not the folder it was when the training began: was its disk lost? Mount "
            "it and run this again."
        )


@cache
def _hash(path: Path, size: int, changed: int) -> str:
    """Return the checksum of a file; many runs start from one of a gigabyte."""
    return file_hash(path)


def make_folder(path: Path) -> None:
    """Make a folder; raises UserError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise UserError(f"The folder {path} cannot be made.") from None
