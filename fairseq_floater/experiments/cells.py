"""Run the cells of a table, choose them by name, and say how far each is."""

from __future__ import annotations

import argparse
import fnmatch
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from fairseq_floater.errors import UsageError, UserError, sentence
from fairseq_floater.experiments.commands import machines_of
from fairseq_floater.experiments.hardware import use_gpus
from fairseq_floater.experiments.job import Job, floater
from fairseq_floater.experiments.launch import BusyError, Launcher
from fairseq_floater.experiments.locks import is_locked
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.files import write_whole

_LOG_END = 20_000  # bytes of a log in which its last update is looked for


@dataclass(frozen=True)
class Cell(ABC):
    """A number of a table; subclasses say which run answers to it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name by which it is chosen."""

    @property
    def shared(self) -> str:
        """Return the name of what several cells start from, such as a donor; empty for a number."""
        return ""

    @abstractmethod
    def folder(self, work: Path, seed: int) -> Path:
        """Return where its run lies; that of a shared one is the same for every seed."""


C = TypeVar("C", bound=Cell)


def select(cells: Sequence[C], patterns: str = "") -> list[C]:
    """Return the cells whose names match one of the comma-separated patterns (``base-*``); all for none.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            raise UsageError(
                f"`--only` must match cells such as {cells[0].name}, but {pattern!r} matches none; "
                "--list prints them all."
            )
    wanted = wanted or ["*"]
    return [c for c in cells if any(fnmatch.fnmatchcase(c.name, pattern) for pattern in wanted)]


# Progress.


class Progress(NamedTuple):
    """The progress of a run: ``state`` is done, trained, running, failed, broken off or not begun."""

    state: str
    detail: str = ""


def progress_of(folder: Path, lock: Path | None = None) -> Progress:
    """Look at a run's folder, from any machine that shares it.

    Args:
        folder: the run's.
        lock: what is held beside it while it is made, where several runs share it.
    """
    if not folder.is_dir():
        return Progress("not begun")
    if any(is_locked(path) for path in (folder / ".lock", lock) if path is not None):
        return Progress("running", _last_update(folder))
    record = RunFolder(folder).read()
    if record.get("state") in ("done", "failed"):
        return Progress(record["state"], str(record.get("reason") or ""))
    if lock is not None and record.get("trained"):
        return Progress("trained")
    return Progress("broken off", _last_update(folder))


def _last_update(folder: Path) -> str:
    """Return ``epoch 3, update 12,400, 2 min ago`` from the end of a training's log."""
    log = folder / "train.log"
    if not log.exists():
        return "no training yet"
    end = end_of(log)
    age = max(0.0, time.time() - log.stat().st_mtime)
    found = re.findall(r"epoch (\d+).*?num_updates[=\s]+(\d+)", end)
    where = f"epoch {int(found[-1][0])}, update {int(found[-1][1]):,}" if found else "no update yet"
    return f"{where}, {age / 60:.0f} min ago"


def end_of(log: Path) -> str:
    """Return what a training has written last."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END))
        return file.read().decode("utf-8", errors="replace")


def status_text(lines: Iterable[tuple[str, Progress]]) -> str:
    """List runs, one a line: name, state, and where it is; then how many are in each state."""
    found, counts = list(lines), Counter[str]()
    width = max((len(name) for name, _ in found), default=0)
    texts = []
    for name, (state, detail) in found:
        counts[state] += 1
        texts.append(f"{name:<{width}} {state:<11} {detail}".rstrip())
    total = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return "\n".join([*texts, "", total])


# Runs.


class TableRunner(ABC, Generic[C]):
    """Cells and seeds of a table: :meth:`run`; subclasses say what a cell's run is.

    Args:
        args: the command line.
        launcher: starts the commands.
    """

    jobs = 1  # cells side by side
    table: str  # the file's name without its ending
    options: tuple[str, ...] = ()  # of `floater table`
    scores: tuple[str, ...]  # patterns below --work

    def __init__(self, args: argparse.Namespace, launcher: Launcher):
        self.args, self.launcher = args, launcher
        self.machines = machines_of(args)
        self.failed: list[str] = []
        self.busy: list[str] = []

    @abstractmethod
    def job(self, cell: C, seed: int) -> Job:
        """Return the run of a cell."""

    def prepare(self) -> None:
        """Make what all cells need and no cell makes; nothing by default."""

    def status(self, cells: Sequence[C]) -> str:
        """Return how far each cell is under each seed."""

        def lines() -> Iterator[tuple[str, Progress]]:
            for cell in cells:
                for seed in [0] if cell.shared else self.args.seeds:
                    folder = cell.folder(self.args.work, seed)
                    name = cell.name if cell.shared else f"{cell.name} seed {seed}"
                    lock = folder.parent / f".{cell.shared}.lock" if cell.shared else None
                    yield name, progress_of(folder, lock)

        return status_text(lines())

    def run(self, cells: Sequence[C]) -> None:
        """Run the cells; what another process is at is left to it, a failure stops no other cell.

        Raises:
            UserError: a cell failed.
        """
        if not self.args.dry_run:
            self.launcher.environment |= use_gpus(self.machines)
        self.prepare()
        runs = [(cell, seed) for seed in self.args.seeds for cell in cells]
        self.launcher.screen.systems = len(runs)
        with ThreadPoolExecutor(1 if self.args.dry_run else self.jobs) as pool:
            list(pool.map(self._run_cell, *zip(*runs)))
        if self.busy:
            self.launcher.say(f"Left to others that are at work on them: {', '.join(self.busy)}")
        self.print_table()
        if self.failed:
            names = ", ".join(self.failed)
            raise UserError(f"Failed: {names} (the same command with --status says why).")

    def _run_cell(self, cell: C, seed: int) -> None:
        self.launcher.check_stopped()
        if self.args.dry_run:
            print(f"# {cell.name}", flush=True)
        self.launcher.say(f"== {cell.name}, seed {seed}")
        try:
            self.job(cell, seed).run()
        except BusyError:
            self.launcher.screen.systems -= 1
            self.busy.append(f"{cell.name} seed {seed}")
        except (UserError, OSError) as error:
            self.launcher.say(f"{cell.name}: {sentence(error)}")
            self.failed.append(f"{cell.name} seed {seed}")

    def table_command(self) -> list[str | Path]:
        """Return the command that prints the table beside the paper's numbers."""
        work = self.args.work
        return floater("table", work, *self.options, "--json", work / f"{self.table}.json")

    def print_table(self) -> None:
        """Print the table of what is done, and keep it."""
        work = self.args.work
        table, places = work / f"{self.table}.md", {"log": work / f"{self.table}.log"}
        if self.args.dry_run:
            self.launcher.run(self.table_command(), output=table)
            return
        if not any(path for pattern in self.scores for path in work.glob(pattern)):
            self.launcher.say("Nothing is scored yet: no table.")
            return
        command = self.table_command()
        write_whole(table, lambda part: self.launcher.run(command, output=part, **places))
        print(table.read_text(encoding="utf-8"), end="")


def add_table_options(parser: argparse.ArgumentParser, only: str) -> None:
    """Add the options that say which cells, and what is done with them; ``only`` is a line of help."""
    parser.add_argument("--only", default="", metavar="CELLS", help=f"comma-separated {only}")
    for action, text in (
        ("list", "print the names, one a line, and do nothing"),
        ("status", "what is done, running, failed, broken off, not begun"),
        ("table", "print the table of what is done"),
    ):
        parser.add_argument(f"--{action}", action="store_true", help=text)


def act(
    runner: Callable[[argparse.Namespace, Launcher], TableRunner[C]],
    args: argparse.Namespace,
    cells: Sequence[C],
    shared: Sequence[C],
) -> None:
    """Do what the command line asks for: print the status, the names or the table, or run the cells.

    Args:
        runner: makes the runner.
        args: the command line.
        cells: the chosen ones.
        shared: what all cells start from; the status lists it where none are chosen by name.
    """
    if args.list:
        print("\n".join(cell.name for cell in cells))
        return
    launcher = Launcher(dry_run=args.dry_run)
    table = runner(args, launcher)
    if args.status:
        print(table.status([*([] if args.only else shared), *cells]))
    elif args.table:
        table.print_table()
    else:
        with launcher.signals():
            table.run(cells)
