"""Show the progress of an experiment: a line for each finished step, and the state of each training.

On a terminal, a training is one live line. Elsewhere the same content is printed as plain lines.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from fairseq_floater.position_encoders.options import option_values

# Groups: epoch, updates of an epoch, loss, updates so far.
UPDATE = re.compile(
    r"train_inner \| epoch (\d+): +\d+ / (\d+) (?:.*?\b)??loss=([^,\s]+),.*?num_updates=(\d+)"
)
_VALID = re.compile(r"epoch (\d+) \| valid on 'valid' subset \| loss (\S+)")
_NOTE = re.compile(r"position encoder: |WARNING|ERROR|Error\b|told to stop")
_LONGEST = 150  # characters of fairseq's lines that are shown


def duration(seconds: float) -> str:
    """Return ``45 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def total_updates(arguments: Sequence[str], an_epoch: int) -> int | None:
    """Return the number of updates that fairseq-train's arguments allow; None without a limit."""
    values = option_values(arguments)
    limits = int(values.get("--max-update", 0)), int(values.get("--max-epoch", 0)) * an_epoch
    return min(filter(None, limits), default=None)


class Screen:
    """Print messages to stderr and count the finished systems; ``left`` returns the time left in words."""

    def __init__(self, systems: int = 1, left: Callable[[], str] = lambda: ""):
        self.systems, self.left = systems, left
        self.live = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._begun = self._done = 0

    def say(self, text: str) -> None:
        with self._lock:
            tqdm.write(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)
            sys.stderr.flush()

    def drop_system(self) -> None:
        """Count one system fewer: another process runs it."""
        with self._lock:
            self.systems -= 1

    @contextmanager
    def system(self, name: str, folder: Path) -> Iterator[None]:
        """Print that a system begins and, when it is done, how long it took and where its folder is."""
        begun = time.monotonic()
        with self._lock:
            self._begun += 1
            number = self._begun
        if self.systems > 1:
            self.say(f"{name}: run {number} of {self.systems}")
        yield
        with self._lock:
            self._done += 1
            rest = f"; {self._done} of {self.systems} runs" if self.systems > 1 else ""
        rest += f", {left}" if (left := self.left()) else ""
        took = duration(time.monotonic() - begun)
        self.say(f"{name}: done in {took}; everything is in {folder}{rest}")


class TrainingLine:
    """The progress of a training, from the lines of fairseq's log.

    ``--max-epoch`` and ``--max-update`` in ``arguments`` give its length. ``expected`` is the number of
    updates an epoch in the recipe.
    """

    def __init__(
        self,
        screen: Screen,
        name: str,
        arguments: Sequence[str],
        expected: float | None = None,
    ):
        self.name, self._screen, self._expected = name, screen, expected
        self.updates_an_epoch: int | None = None
        self._arguments = arguments
        self._first: tuple[float, int] | None = None
        self._bar: tqdm | None = None

    def read(self, line: str) -> None:
        if match := UPDATE.search(line):
            self._show(int(match[1]), int(match[2]), match[3], int(match[4]))
        elif match := _VALID.search(line):
            self._screen.say(f"{self.name}: epoch {int(match[1])}, validation loss {match[2]}")
        elif _NOTE.search(line):
            text = re.sub(r"^[^|]*\| [A-Z]+ \| ", "", line)
            self._screen.say(f"{self.name}: {text[:_LONGEST]}")

    def _show(self, epoch: int, an_epoch: int, loss: str, done: int) -> None:
        self.updates_an_epoch = an_epoch
        if self._expected is not None:
            text = f"{an_epoch:,} updates an epoch; the recipe's: {self._expected:,.0f}"
            self._screen.say(f"{self.name}: {text}")
            self._expected = None
        total = total_updates(self._arguments, an_epoch)
        total = None if total is None else max(total, done)
        now = time.monotonic()
        self._first = self._first or (now, done)
        begun, before = self._first
        parts = [f"epoch {epoch}", f"update {done:,}" + (f" of {total:,}" if total else "")]
        parts.append(f"loss {loss}")
        if total and done > before:
            left = (total - done) * (now - begun) / (done - before)
            parts.append(f"{duration(left)} left")
        text = f"{self.name}: {', '.join(parts)}"
        if not self._screen.live:
            self._screen.say(text)
            return
        if self._bar is None:
            self._bar = tqdm(total=total, bar_format="{bar:20} {desc}", leave=False)
        self._bar.n = done
        self._bar.set_description_str(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
