"""Start the commands of an experiment: print them in a dry run, log them, stop them by signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryFile
from threading import local
from types import FrameType
from typing import Any

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.screen import Screen, TrainingLine, duration
from fairseq_floater.files import write_whole
from fairseq_floater.verbs import as_path

_LAST_LINES = 3  # of a failed command's output that are shown
_POLL = 0.2  # seconds between two checks of a running command
_PROBE = 65_536  # bytes; a disk with less room counts as full
_QUIET = 30  # seconds between messages that a command without progress lines is still running


class CommandError(UserError):
    """A command of an experiment failed."""


class StoppedError(SystemExit):
    """A signal told this process to stop. The same command resumes the work."""

    code = 143


class BusyError(SystemExit):
    """Another process is at work on the same run."""

    code = 75


class Launcher:
    """Start commands; several threads may do so at once.

    Args:
        dry_run: print the commands instead, on stdout.
        screen: where messages go.
        environment: variables of the commands, added to those of this process.
        job_environments: further variables, such as GPUs; jobs that run side by side take one each, in turn.
    """

    def __init__(
        self,
        *,
        dry_run: bool = False,
        screen: Screen | None = None,
        environment: Mapping[str, str] | None = None,
        job_environments: Sequence[Mapping[str, str]] = ({},),
    ):
        self.dry_run = dry_run
        self.screen = screen or Screen()
        self.environment = {
            **os.environ,
            # The scripts that are called use this Python, and do not check its setup again.
            "FLOATER_PYTHON": sys.executable,
            "FLOATER_SET_UP": sys.executable,
            "FLOATER_SAVE_ON_SIGTERM": "1",
            **(environment or {}),
            **job_environments[0],
        }
        if folder := self.environment.get("FLOATER_USER_DIR"):
            self.environment["FLOATER_USER_DIR"] = str(Path(folder).absolute())
        self._job_environments, self._thread = cycle(job_environments), local()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def begin_job(self) -> None:
        """Give this thread's commands the variables of the next job."""
        self._thread.environment = next(self._job_environments)

    def say(self, text: str) -> None:
        """Print a message, in a dry run too."""
        self.screen.say(text)

    def check_stopped(self, seconds: float = 0) -> None:
        """Wait ``seconds``, then raise StoppedError if this process was told to stop."""
        time.sleep(seconds)
        if self._stopped:
            raise StoppedError

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Pass SIGTERM, SIGINT and SIGHUP on to running commands as SIGTERM, so that they can save first."""
        before = {
            number: signal.signal(number, self._stop)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN  # under nohup, or `&` in a script
        }
        try:
            yield
        except StoppedError:
            self.say("Told to stop: run the same command to go on.")
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        for child in list(self._children):
            child.terminate()

    def run(
        self,
        argv: Sequence[Any],
        *,
        name: str = "",
        log: Path | None = None,
        output: Path | None = None,
        line: TrainingLine | None = None,
        locks: Sequence[int] = (),
    ) -> None:
        """Run a command to its end; in a dry run print it.

        Args:
            argv: the command.
            name: the run that it belongs to, for messages.
            log: file to which its output is appended; None for the screen.
            output: file that its stdout overwrites.
            line: reads the new lines of ``log``.
            locks: descriptors of locks that the command inherits.

        Raises:
            CommandError: it failed.
            StoppedError: this process was told to stop, and the command has ended.
        """
        command = [as_path(word) if isinstance(word, Path) else str(word) for word in argv]
        if self.dry_run:
            into = "" if output is None else f" > {shlex.quote(as_path(output))}"
            print(shlex.join(command) + into, flush=True)
            return
        self.check_stopped()
        begin = 0
        with ExitStack() as files:
            stderr = None if log is None else files.enter_context(log.open("ab"))
            stdout = stderr if output is None else files.enter_context(output.open("wb"))
            if stderr is not None:
                stderr.write(f"+ {shlex.join(command)}\n".encode("utf-8", "backslashreplace"))
                stderr.flush()
                begin = stderr.tell()
            child = self._start(command, stdout, stderr, locks)
            try:
                code = self._wait(child, log, begin, line, name or command[-1])
            finally:
                self._children.discard(child)
        self.check_stopped()
        if code == 0:
            return
        failure = f"{name or command[0]}: the command failed"
        if log is None:
            raise CommandError(f"{failure}: {shlex.join(command)}.")
        for text in _read(log, begin)[0][-_LAST_LINES:]:
            print(text, file=sys.stderr)
        fault = _disk_fault(log)
        raise CommandError(f"{failure}: {fault}." if fault else f"{failure}; see the end of {log}.")

    def show(self, argv: Sequence[Any], table: Path, log: Path | None = None) -> None:
        """Run a command that prints a table, and keep the table; in a dry run print the command."""
        if self.dry_run:
            self.run(argv, output=table)
            return
        write_whole(table, lambda part: self.run(argv, output=part, log=log))
        print(table.read_text(encoding="utf-8"), end="")

    def _start(
        self, command: list[str], stdout: Any, stderr: Any, locks: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        # Ctrl-C or a closed terminal signals every process. Commands must get only SIGTERM.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**self.environment, **getattr(self._thread, "environment", {})},
                pass_fds=tuple(locks),
            )
            self._children.add(child)
        except OSError as error:
            raise CommandError(f"{command[0]} cannot be started: {error.strerror}.") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self._stopped:
            child.terminate()
        return child

    def _wait(
        self,
        child: subprocess.Popen[bytes],
        log: Path | None,
        offset: int,
        line: TrainingLine | None,
        name: str,
    ) -> int:
        """Wait for a command, show its new log lines or that it is running, and return its exit code."""
        code, begun, last_message = None, time.monotonic(), 0.0
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(_POLL)
            if log is None:
                continue
            if line is not None:
                lines, offset = _read(log, offset)
                for text in lines:
                    line.read(text)
            elif (seconds := time.monotonic() - begun) - last_message > _QUIET:
                self.say(f"{name}: running for {duration(seconds)}; log in {log}")
                last_message = seconds
        return code


def _disk_fault(log: Path) -> str | None:
    """Return why ``log`` cannot be written to, such as a full disk; None if it can."""
    try:
        with TemporaryFile(dir=log.parent) as file:
            file.write(bytes(_PROBE))
    except OSError as error:
        return f"{log.parent}: {error.strerror}"
    return None


def _read(log: Path, offset: int) -> tuple[list[str], int]:
    with log.open("rb") as file:
        file.seek(offset)
        text = file.read()
    end = text.rfind(b"\n") + 1
    lines = text[:end].decode("utf-8", errors="replace").split("\n")
    return [line for line in lines if line.strip()], offset + end
