"""What a person sees of an experiment: a line a finished step, and how far each training is.

On a terminal a training is one live line; elsewhere the same content comes as plain lines.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

_UPDATE = re.compile(
    r"train_inner \| epoch (\d+): +\d+ / (\d+) (?:.*?\b)??loss=([^,\s]+),.*?num_updates=(\d+)"
)
_VALID = re.compile(r"epoch (\d+) \| valid on 'valid' subset \| loss (\S+)")
_NOTE = re.compile(r"position encoder: |WARNING|ERROR|Error\b|told to stop")
_LONGEST = 150  # characters of a line of fairseq's


def duration(seconds: float) -> str:
    """Return ``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Screen:
    """Messages on stderr, and the plan of several systems.

    Args:
        systems: how many systems are to be run.
        jobs: how many of them run side by side.
    """

    def __init__(self, systems: int = 1, jobs: int = 1):
        self.systems = systems
        self.jobs = jobs
        self.live = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._begun: dict[Path, float] = {}
        self._seconds: list[float] = []
        self._left: dict[Path, float] = {}
        self._rows: list[bool] = []

    def say(self, text: str) -> None:
        """Print a line with the time of day."""
        with self._lock:
            tqdm.write(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)
            sys.stderr.flush()

    @contextmanager
    def system(self, name: str, place: Path) -> Iterator[None]:
        """Say that a system begins, and when it is done how long it took and where it is."""
        with self._lock:
            self._begun[place] = begun = time.monotonic()
            number = len(self._begun)
        if self.systems > 1:
            self.say(f"{name}: system {number} of {self.systems}")
        try:
            yield
        finally:
            with self._lock:
                self._left.pop(place, None)
        with self._lock:
            self._seconds.append(time.monotonic() - begun)
        rest = [f"{len(self._seconds)} of {self.systems} systems"] if self.systems > 1 else []
        rest += filter(None, [self._left_in_all()])
        took = duration(self._seconds[-1])
        self.say("; ".join([f"{name}: done in {took}", f"everything is in {place}", *rest]))

    def note_left(self, place: Path, seconds: float) -> str:
        """Note how long a system's training will take yet; return that of all systems, in words."""
        with self._lock:
            self._left[place] = seconds
        return self._left_in_all()

    def _left_in_all(self) -> str:
        """Estimate from the systems that are done, or else from those that run."""
        if self.systems == 1:
            return ""
        with self._lock:
            now = time.monotonic()
            running = [now - self._begun[place] + left for place, left in self._left.items()]
            costs = self._seconds or running
            waiting = self.systems - len(self._begun)
            if not costs or (not waiting and not running):
                return ""
            left = sum(costs) / len(costs) * waiting / self.jobs + max(
                self._left.values(), default=0
            )
        return f"about {duration(left)} left in all"

    def training(self, name: str, place: Path, arguments: Sequence[str]) -> TrainingLine:
        """Return the line of a training; ``place`` is the folder of the system that it belongs to."""
        return TrainingLine(self, name, place, arguments)

    def take_row(self) -> int:
        """Return the first row of the terminal that no live line takes."""
        with self._lock:
            if False not in self._rows:
                self._rows.append(False)
            row = self._rows.index(False)
            self._rows[row] = True
            return row

    def give_row(self, row: int) -> None:
        """Give a row back."""
        with self._lock:
            self._rows[row] = False


class TrainingLine:
    """How far a training is, from the lines of fairseq's log as they come.

    Args:
        arguments: fairseq-train's, of which ``--max-epoch`` and ``--max-update`` say how long it is.
    """

    def __init__(self, screen: Screen, name: str, place: Path, arguments: Sequence[str]):
        self._screen, self._name, self._place = screen, name, place
        self._epochs, self._updates = (
            int(arguments[arguments.index(option) + 1]) if option in arguments else 0
            for option in ("--max-epoch", "--max-update")
        )
        self._first: tuple[float, int] | None = None
        self._bar: tqdm | None = None
        self._row = 0

    def read(self, line: str) -> None:
        """Take one line of the log."""
        if found := _UPDATE.search(line):
            self._show(int(found[1]), int(found[2]), found[3], int(found[4]))
        elif found := _VALID.search(line):
            self._screen.say(f"{self._name}: epoch {int(found[1])}, validation loss {found[2]}")
        elif _NOTE.search(line):
            text = re.sub(r"^[^|]*\| [A-Z]+ \| ", "", line)
            self._screen.say(f"{self._name}: {text[:_LONGEST]}")

    def _show(self, epoch: int, an_epoch: int, loss: str, done: int) -> None:
        limits = [n for n in (self._updates, self._epochs * an_epoch) if n]
        total = max(min(limits), done) if limits else None
        now = time.monotonic()
        self._first = self._first or (now, done)
        begun, before = self._first
        parts = [f"epoch {epoch}", f"update {done:,}" + (f" of {total:,}" if total else "")]
        parts.append(f"loss {loss}")
        if total and done > before:
            left = (total - done) * (now - begun) / (done - before)
            parts.append(f"{duration(left)} left")
            parts += filter(None, [self._screen.note_left(self._place, left)])
        if not self._screen.live:
            self._screen.say(f"{self._name}: {', '.join(parts)}")
            return
        if self._bar is None:
            self._row = self._screen.take_row()
            shape = "{bar:20} {desc}"
            self._bar = tqdm(total=total, bar_format=shape, position=self._row, leave=False)
        self._bar.n = done
        self._bar.set_description_str(f"{self._name}: {', '.join(parts)}")

    def close(self) -> None:
        """Remove the live line."""
        if self._bar is not None:
            self._bar.close()
            self._screen.give_row(self._row)
            self._bar = None
