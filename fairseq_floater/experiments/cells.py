"""Name and select the runs of a table, run them side by side, and report the progress of each."""

from __future__ import annotations

import fnmatch
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from fairseq_floater.errors import UsageError, UserError, sentence
from fairseq_floater.experiments.job import Job
from fairseq_floater.experiments.launch import BusyError, Launcher
from fairseq_floater.experiments.locks import is_locked
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import UPDATE, total_updates

_LOG_END = 20_000  # bytes at the end of a log that are searched for its last update


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    name: str  # for the patterns of `select`
    folder: Path
    job: Callable[[Launcher], Job] | None  # None: made by the runs that start from it
    seed: int | None = None  # None for what all seeds share, such as a donor
    lock: Path | None = None  # held while the folder is made, if several runs share it

    @property
    def title(self) -> str:
        return self.name if self.seed is None else f"{self.name} seed {self.seed}"


def select(cells: Sequence[Cell], patterns: str) -> list[Cell]:
    """Return the cells that match one of the comma-separated patterns (``base-*``); all without a pattern.

    Within a seed the cells are in the order of the patterns.

    Raises:
        UsageError: a pattern that matches nothing.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    matches = [[c for c in cells if fnmatch.fnmatchcase(c.name, pattern)] for pattern in wanted]
    for pattern, found in zip(wanted, matches):
        if not found:
            raise UsageError(
                f"`--only` must match cells such as {cells[0].name}, but {pattern!r} matches none; "
                "--list prints them all."
            )
    if not wanted:
        return list(cells)
    seeds = dict.fromkeys(cell.seed for cell in cells)
    chosen = (c for seed in seeds for found in matches for c in found if c.seed == seed)
    return list(dict.fromkeys(chosen))


class Outcome(NamedTuple):
    """Why cells failed, by title, and the titles of those that other processes are running."""

    failed: dict[str, str]
    busy: list[str]


def run_cells(
    cells: Sequence[Cell],
    launcher: Launcher,
    jobs: int = 1,
    *,
    stop_early: bool = False,
) -> Outcome:
    """Run cells side by side, print why a cell fails, and skip cells that other processes are running.

    Args:
        jobs: number of cells at a time; 1 in a dry run.
        stop_early: start no further run after one failed or was skipped.

    Raises:
        StoppedError: this process was told to stop.
    """
    outcome = Outcome({}, [])

    def run(cell: Cell) -> None:
        launcher.check_stopped()
        if stop_early and any(outcome):
            return
        if launcher.dry_run:
            print(f"# {cell.name}", flush=True)
        assert cell.job is not None
        try:
            cell.job(launcher).run()
        except BusyError:
            launcher.screen.drop_system()
            outcome.busy.append(cell.title)
        except (UserError, OSError) as error:
            launcher.say(f"{cell.name}: {sentence(error)}")
            outcome.failed[cell.title] = sentence(error)

    side_by_side = 1 if launcher.dry_run else jobs
    with ThreadPoolExecutor(side_by_side, initializer=launcher.begin_job) as pool:
        list(pool.map(run, cells))
    return outcome


class Progress(NamedTuple):
    """The progress of a run: ``state`` is done, trained, running, failed, broken off or not begun."""

    state: str
    detail: str = ""


def progress_of(folder: Path, lock: Path | None = None) -> Progress:
    """Return the progress of a run from its folder, which machines may share; for ``lock`` see `Cell`."""
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
    log = folder / "train.log"
    if not log.exists():
        return "no training yet"
    updates = re.findall(r"epoch (\d+).*?num_updates[=\s]+(\d+)", _end_of(log))
    age = max(0.0, time.time() - log.stat().st_mtime)
    where = "no update yet"
    if updates:
        where = f"epoch {int(updates[-1][0])}, update {int(updates[-1][1]):,}"
    return f"{where}, {age / 60:.0f} min ago"


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END))
        return file.read().decode("utf-8", errors="replace")


def status_text(cells: Iterable[Cell]) -> str:
    """Return a line for each cell (title, state, detail), then the number of cells in each state."""
    lines = [(cell.title, *progress_of(cell.folder, cell.lock)) for cell in cells]
    width = max((len(title) for title, _, _ in lines), default=0)
    texts = [f"{title:<{width}} {state:<11} {detail}".rstrip() for title, state, detail in lines]
    counts = Counter(state for _, state, _ in lines)
    total = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    return "\n".join([*texts, "", total])


def seconds_left(cells: Iterable[Cell]) -> float | None:
    """Return the seconds of work that are left in all cells; None if no cell is done yet.

    The estimate for a run is the mean time of its name under other seeds, else of all runs that are done.
    The finished share of its training is subtracted.
    """
    took, unfinished = defaultdict[str, list[float]](list), []
    for cell in cells:
        record = RunFolder(cell.folder).read()
        if record.get("state") != "done":
            unfinished.append((cell, record))
        elif seconds := sum(float(s["seconds"]) for s in record.get("sessions", ())):
            took[cell.name].append(seconds)
    every = [seconds for name in took for seconds in took[name]]
    if not every:
        return None
    return sum(
        mean(took.get(cell.name, every)) * (1 - _share_trained(cell.folder, record))
        for cell, record in unfinished
    )


def _share_trained(folder: Path, record: dict[str, Any]) -> float:
    if record.get("trained"):
        return 1.0
    stage = next((s for s in ("donor", "scratch", "finetune") if s in record["arguments"]), None)
    log = folder / "train.log"
    updates = UPDATE.findall(_end_of(log)) if stage and log.exists() else []
    if not updates or stage is None:
        return 0.0
    _, an_epoch, _, done = updates[-1]
    total = total_updates(record["arguments"][stage], int(an_epoch))
    return min(1.0, int(done) / total) if total else 0.0
