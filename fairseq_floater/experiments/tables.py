"""Run the cells of a table, print the table of the finished ones, and report the progress."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_floater.errors import UserError, sentence
from fairseq_floater.experiments.cells import Cell, run_cells, status_text
from fairseq_floater.experiments.hardware import Machines, machines_from_args, use_gpus
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.screen import Screen


class Table(ABC):
    """The runs that a command line chooses, and the table of them.

    Args:
        args: the command line; everything goes to its ``work``.
        name: name of the table's files in ``work``, without ending.
        cells: the cells to run.
        shared: the runs that the cells start from, which the status shows.
        jobs: number of cells at a time.
        environment: further environment variables of the commands.
        machines: of each cell; default: those of the command line.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        name: str,
        cells: Sequence[Cell],
        shared: Sequence[Cell] = (),
        *,
        jobs: int = 1,
        environment: Mapping[str, str] | None = None,
        machines: Machines | None = None,
    ):
        self.args, self.work, self.name = args, args.work, name
        self.cells, self.shared, self.jobs = cells, shared, jobs
        gpus: list[dict[str, str]] = [{}]
        if not (args.list or args.status or args.table):
            gpus = use_gpus(machines or machines_from_args(args), dry_run=args.dry_run)
        self.launcher = Launcher(
            dry_run=args.dry_run,
            screen=Screen(len(cells), self.left),
            environment=environment,
            job_environments=gpus,
        )

    def act(self) -> None:
        """Print the names, the status or the table, or run the cells, as the command line says."""
        if self.args.list:
            print("\n".join(dict.fromkeys(cell.name for cell in self.cells)))
        elif self.args.status:
            print(self.status())
        elif self.args.table:
            self.print()
        else:
            with self.launcher.signals():
                self.run()

    def left(self) -> str:
        """Return in words the time left for all cells; empty if it is unknown."""
        return ""

    @abstractmethod
    def command(self) -> list[Any]:
        """Return the command that prints the table, and writes its JSON."""

    @abstractmethod
    def why_no_table(self) -> str:
        """Return why no table can be made yet; empty if one can."""

    def run(self) -> None:
        """Run the cells, except those that other processes are running. If one fails, the rest still run.

        Raises:
            UserError: a cell failed.
        """
        outcome = run_cells(self.cells, self.launcher, self.jobs)
        if outcome.busy:
            names = ", ".join(outcome.busy)
            self.launcher.say(f"Skipped, because other processes are running them: {names}")
        if not outcome.failed:
            self.print()
            return
        failure = f"Failed: {', '.join(outcome.failed)} (the same command with --status says why)."
        title, reason = next(iter(outcome.failed.items()))  # the others are often the same
        failure += f" {title}: {reason}"
        try:
            self.print()
        except (UserError, OSError) as error:
            failure += f" {sentence(error)}"
        raise UserError(failure)

    def status(self) -> str:
        return f"{status_text([*self.shared, *self.cells])}\n{self.left()}".rstrip()

    def print(self) -> None:
        table, log = self.work / f"{self.name}.md", self.work / f"{self.name}.log"
        if not self.launcher.dry_run and (reason := self.why_no_table()):
            self.launcher.say(reason)
        else:
            self.launcher.show(self.command(), table, log)


class PaperTable(Table):
    """A table beside the paper's numbers."""

    def command(self) -> list[Any]:
        options = ["--paper"] if self.name == "table2" else []
        return floater("table", self.work, *options, "--json", self.work / f"{self.name}.json")

    def why_no_table(self) -> str:
        patterns = ("*/*/scores.*.json", "*/*/*/scores*.json")  # runs without and with a seed
        is_scored = any(path for pattern in patterns for path in self.work.glob(pattern))
        return "" if is_scored else "Nothing is scored yet: no table."

    def status(self) -> str:
        names = list(dict.fromkeys(cell.name for cell in self.cells))
        cells = sorted(self.cells, key=lambda cell: names.index(cell.name))
        return status_text([*self.shared, *cells])


def add_table_options(parser: argparse.ArgumentParser, only: str) -> None:
    """Add the options that choose cells and what to do with them; ``only`` is the help of ``--only``."""
    parser.add_argument("--only", default="", metavar="CELLS", help=f"comma-separated {only}")
    for action, text in (
        ("list", "print the names, one a line, and run nothing"),
        ("status", "print what is done, running, failed, broken off, not begun"),
        ("table", "print the table of what is done"),
    ):
        parser.add_argument(f"--{action}", action="store_true", help=text)
