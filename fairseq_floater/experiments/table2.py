"""Run the 24 cells of Table 2 and say how far each is: `scripts/table2.sh`.

A cell's run lies in ``WORK/<config>/seed-<n>/<run>``, its donor, shared by all rows and seeds of a column,
in ``WORK/<config>/plain``.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_floater.errors import UsageError, UserError, exit_code, sentence
from fairseq_floater.experiments.commands import (
    add_run_options,
    machines_of,
    preparation_of,
    seeds,
)
from fairseq_floater.experiments.hardware import use_gpus
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import BusyError, Launcher
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2
from fairseq_floater.experiments.protocol import Protocol, Run
from fairseq_floater.experiments.run_folder import RunFolder, is_locked
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR, write_whole

_LOG_END = 20_000  # bytes of a log in which its last update is looked for


@dataclass(frozen=True)
class Cell:
    """One number of Table 2, or with the encoder ``plain`` the donor of a column."""

    size: str
    source: str
    target: str
    encoder: str
    blocks: str = "all"

    @property
    def name(self) -> str:
        """``base-en-de-floater-all``; ``base-en-de-plain``."""
        parts = [self.size, self.source, self.target, self.encoder]
        return "-".join(parts if self.encoder == PLAIN else [*parts, self.blocks])

    @property
    def config(self) -> str:
        """Return the configuration's file name without ``.yaml``."""
        return f"wmt14_{self.source}_{self.target}_{self.size}"

    @property
    def run(self) -> System:
        return System(self.encoder, self.blocks)

    def folder(self, work: Path, seed: int) -> Path:
        """Return where its run lies."""
        column = work / self.config
        return column / PLAIN if self.encoder == PLAIN else column / f"seed-{seed}" / self.run.name


def select(patterns: str = "", *, donors: bool = False) -> list[Cell]:
    """Return the cells whose names match one of the comma-separated patterns (``base-*``); all for none.

    Column after column, so that the first cells share a donor.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    rows = [("all", PLAIN)] if donors else list(TABLE_2)
    cells = [Cell(*column, encoder, blocks) for column in COLUMNS for blocks, encoder in rows]
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            raise UsageError(
                f"`--only` must match cells such as {cells[0].name}, but {pattern!r} matches none; "
                "--list prints them all."
            )
    wanted = wanted or ["*"]
    return [c for c in cells if any(fnmatch.fnmatchcase(c.name, pattern) for pattern in wanted)]


class Progress(NamedTuple):
    """The progress of a run: ``state`` is done, running, failed, broken off or not begun."""

    state: str
    detail: str = ""


def progress_of(folder: Path) -> Progress:
    """Look at a run's folder, from any machine that shares it."""
    if not folder.is_dir():
        return Progress("not begun")
    # Whoever trains a donor holds the lock beside it.
    beside = [folder.parent / ".donor.lock"] if folder.name == PLAIN else []
    if any(is_locked(lock) for lock in (folder / ".lock", *beside)):
        return Progress("running", _last_update(folder))
    record = RunFolder(folder).read()
    if record.get("state") in ("done", "failed"):
        return Progress(record["state"], str(record.get("reason") or ""))
    if folder.name == PLAIN and record.get("trained"):
        return Progress("trained")
    return Progress("broken off", _last_update(folder))


def _last_update(folder: Path) -> str:
    """Return ``epoch 3, update 12,400, 2 min ago`` from the end of a training's log."""
    log = folder / "train.log"
    if not log.exists():
        return "no training yet"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END))
        end = file.read().decode("utf-8", errors="replace")
    age = max(0.0, time.time() - log.stat().st_mtime)
    found = re.findall(r"epoch (\d+).*?num_updates[=\s]+(\d+)", end)
    where = f"epoch {int(found[-1][0])}, update {int(found[-1][1]):,}" if found else "no update yet"
    return f"{where}, {age / 60:.0f} min ago"


def status_text(work: Path, cells: Sequence[Cell], seeds: Sequence[int]) -> str:
    """List the runs, one a line: its name, state, and where it is; then how many are in each state."""
    lines, counts = [], Counter[str]()
    for cell in cells:
        for seed in [0] if cell.encoder == PLAIN else seeds:
            state, detail = progress_of(cell.folder(work, seed))
            counts[state] += 1
            name = cell.name if cell.encoder == PLAIN else f"{cell.name} seed {seed}"
            lines.append(f"{name:<38} {state:<11} {detail}".rstrip())
    total = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return "\n".join([*lines, "", total])


class Table2:
    """Cells and seeds of the table, one after the other: :meth:`run`.

    Args:
        args: the command line.
        launcher: starts the commands.
    """

    def __init__(self, args: argparse.Namespace, launcher: Launcher):
        self.args, self.launcher = args, launcher
        self.machines = machines_of(args)
        if not args.dry_run:
            launcher.environment |= use_gpus(self.machines)
        self.failed: list[str] = []
        self.busy: list[str] = []

    def run(self, cells: Sequence[Cell]) -> None:
        """Run the cells; what another process is at is left to it, a failure stops no other cell.

        Raises:
            UserError: a cell failed.
        """
        self.launcher.screen.systems = len(cells) * len(self.args.seeds)
        for seed in self.args.seeds:
            for cell in cells:
                self._run_cell(cell, seed)
        if self.busy:
            self.launcher.say(f"Left to others that are at work on them: {', '.join(self.busy)}")
        if self.failed:
            names = ", ".join(self.failed)
            raise UserError(f"Failed: {names} (bash scripts/table2.sh --status says why).")
        if not self.args.dry_run:
            self._print_table()

    def _run_cell(self, cell: Cell, seed: int) -> None:
        if self.args.dry_run:
            print(f"# {cell.name}", flush=True)
        self.launcher.say(f"== {cell.name}, seed {seed}")
        try:
            Protocol(self._asked(cell, seed), self.launcher).run()
        except BusyError:
            self.launcher.screen.systems -= 1
            self.busy.append(cell.name)
        except (UserError, OSError) as error:
            self.launcher.say(f"{cell.name}: {sentence(error)}")
            self.failed.append(cell.name)

    def _asked(self, cell: Cell, seed: int) -> Run:
        args, column = self.args, self.args.work / cell.config
        return Run(
            Experiment(args.configs / f"{cell.config}.yaml"),
            cell.run,
            column / f"seed-{seed}",
            data=args.work / "data" / f"{cell.source}-{cell.target}",
            donor=column / PLAIN,
            seed=None if cell.encoder == PLAIN else seed,
            machines=self.machines,
            preparation=preparation_of(args),
        )

    def _print_table(self) -> None:
        """Print the table of what is done, and keep it."""
        work = self.args.work
        if not any(work.glob("*/*/scores.*.json")) and not any(work.glob("*/*/*/scores.*.json")):
            self.launcher.say("Nothing is scored yet: no table.")
            return
        table, places = work / "table2.md", {"name": "table", "log": work / "table2.log"}
        write_whole(
            table, lambda part: self.launcher.run(table_command(work), output=part, **places)
        )
        print(table.read_text(encoding="utf-8"), end="")


def table_command(work: Path) -> list[str | Path]:
    """Return the command that prints the table beside the paper's numbers."""
    return floater("table", work, "--paper", "--json", work / "table2.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/table2.sh", allow_abbrev=False)
    parser.add_argument("--only", default="", metavar="CELLS")
    parser.add_argument("--donors", action="store_true")
    parser.add_argument("--seeds", type=seeds, default=[1])
    parser.add_argument("--work", type=Path, default=Path("work/table2"), metavar="DIR")
    parser.add_argument("--configs", type=Path, default=USER_DIR.parent / "configs", metavar="DIR")
    for action in ("status", "list", "table"):
        parser.add_argument(f"--{action}", action="store_true")
    add_run_options(parser)
    return parser


def _run(args: argparse.Namespace) -> None:
    cells = select(args.only, donors=args.donors)
    launcher = Launcher(dry_run=args.dry_run)
    if args.status:
        donors = select(donors=True) if not args.only else []
        print(status_text(args.work, [*donors, *select(args.only)], args.seeds))
    elif args.list:
        print("\n".join(cell.name for cell in cells))
    elif args.table:
        launcher.run(table_command(args.work), name="table")
    else:
        with launcher.signals():
            Table2(args, launcher).run(cells)


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(exit_code(lambda: _run(arguments)))
