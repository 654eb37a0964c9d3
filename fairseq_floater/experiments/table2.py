"""The 24 cells of Table 2, the runs that answer to them, and how far those are: `scripts/table2.sh`.

A cell's run lies in ``WORK/<config>/seed-<n>/<run>``, its donor, shared by all rows and seeds of a column,
in ``WORK/<config>/plain``.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2
from fairseq_floater.experiments.system import PLAIN, System

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
        """The configuration's file name without ``.yaml``."""
        return f"wmt14_{self.source}_{self.target}_{self.size}"

    @property
    def run(self) -> System:
        return System(self.encoder, self.blocks)

    def folder(self, work: Path, seed: int) -> Path:
        """Where its run lies."""
        column = work / self.config
        return column / PLAIN if self.encoder == PLAIN else column / f"seed-{seed}" / self.run.name


def select(patterns: str = "", *, donors: bool = False) -> list[Cell]:
    """The cells whose names match one of the comma-separated patterns (``base-*``); all for none.

    Column after column, so that the first cells share a donor.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    rows = [("all", PLAIN)] if donors else list(TABLE_2)
    cells = [
        Cell(size, source, target, encoder, blocks)
        for size, source, target in COLUMNS
        for blocks, encoder in rows
    ]
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            raise UsageError(
                f"`--only` must match cells such as {cells[0].name}, but {pattern!r} matches none; "
                "--list prints them all."
            )
    if not wanted:
        return cells
    return [c for c in cells if any(fnmatch.fnmatchcase(c.name, pattern) for pattern in wanted)]


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``state`` is done, running, failed, broken off or not begun."""

    state: str
    detail: str


def progress_of(folder: Path) -> Progress:
    """Look at a run's folder, from any machine that shares it."""
    if not folder.is_dir():
        return Progress("not begun", "")
    # Whoever trains a donor holds the lock beside it.
    beside = [folder.parent / ".donor.lock"] if folder.name == PLAIN else []
    if any(_is_locked(lock) for lock in (folder / ".lock", *beside)):
        return Progress("running", _last_update(folder))
    if (folder / "done").is_file():
        return Progress("done", "")
    if (folder / "failed").is_file():
        reason = (folder / "failed").read_text(encoding="utf-8", errors="replace").strip()
        return Progress("failed", reason)
    if folder.name == PLAIN and (folder / "trained").is_file():
        return Progress("trained", "")
    return Progress("broken off", _last_update(folder))


def _is_locked(path: Path) -> bool:
    """Whether a protocol.sh holds a lock; shared, so that looking never keeps one from starting."""
    try:
        # For writing: file systems that make flock of fcntl's locks (NFS) ask for it.
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(handle)  # gives the lock back
    return False


def _last_update(folder: Path) -> str:
    """``epoch 3, update 12400, 2 min ago`` from the end of a training's log."""
    log = folder / "train.log"
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END))
            end = file.read().decode("utf-8", errors="replace")
        age = max(0.0, time.time() - log.stat().st_mtime)
    except FileNotFoundError:
        return "no training yet"
    found = re.findall(r"epoch (\d+).*?num_updates[=\s]+(\d+)", end)
    where = f"epoch {int(found[-1][0])}, update {int(found[-1][1]):,}" if found else "no update yet"
    return f"{where}, {age / 60:.0f} min ago"


def status_text(work: Path, cells: Sequence[Cell], seeds: Sequence[int]) -> str:
    """One line a run: its name, state, and where it is; then how many are in each state."""
    lines, counts = [], dict[str, int]()
    for cell in cells:
        for seed in [0] if cell.encoder == PLAIN else seeds:
            progress = progress_of(cell.folder(work, seed))
            counts[progress.state] = counts.get(progress.state, 0) + 1
            name = cell.name if cell.encoder == PLAIN else f"{cell.name} seed {seed}"
            lines.append(f"{name:<38} {progress.state:<11} {progress.detail}".rstrip())
    total = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return "\n".join([*lines, "", total])


def _seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"must be numbers with commas, but is {text!r}")
    return [int(seed) for seed in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m fairseq_floater.experiments.table2`: what table2.sh asks for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_floater.experiments.table2", description=__doc__
    )
    parser.add_argument("command", choices=("cells", "status"))
    parser.add_argument("--only", default="", metavar="CELLS")
    parser.add_argument("--donors", action="store_true")
    parser.add_argument("--seeds", type=_seeds, default=[1])
    parser.add_argument("--work", type=Path, default=Path("work/table2"))
    args = parser.parse_args(argv)
    try:
        if args.command == "cells":
            for cell in select(args.only, donors=args.donors):
                print(cell.name, cell.config, cell.encoder, cell.blocks)
            return 0
        donors = select(donors=True) if not args.only else []
        print(status_text(args.work, [*donors, *select(args.only)], args.seeds))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
