"""Define what training does to positions: token i has position lambda (i + Delta + eps_i), or a drawn one.

Each law is one option; `warp.py` draws from it. This file needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fairseq_floater.position_encoders.options import Option

# Stretched positions are rounded to a quarter of a token.
ROWS_PER_TOKEN = 4
# Positions that move by less than a token are rounded to a sixteenth.
FINE_ROWS_PER_TOKEN = 16
# Real positions are drawn from at least this many rows, however short their range.
DRAWN_ROWS = 4096
SHARED = "shared"
WARP_OPTIONS = (
    Option(
        "--position-stretch",
        None,
        "LOW:HIGH; in training, a sentence's positions are i times a factor drawn from this range "
        "(0.5:2.5, say), so training reaches positions past the trained length; LOW:HIGH:log draws its "
        "logarithm (1/1.03:1.03:log is CAPE's global scaling)",
    ),
    Option(
        "--position-shift",
        None,
        "in training, a sentence's positions begin at a whole number below K (500: SHAPE), at a real one "
        "from LOW:HIGH (--position-shift=-5:5: CAPE's global shift), or with fill:L at a whole one from 0 to "
        "L - n (unifPE), n the tokens of the sentence; each side draws its own; after :shared both share "
        "one, and n is the longer side's",
        may_be_range=True,
    ),
    Option(
        "--position-jitter",
        None,
        "in training, each token is moved by up to this part of a token (0.5: CAPE's local shift)",
        float,
        above=0,
        at_most=0.5,
        why=": further, tokens would change places.",
    ),
    Option(
        "--position-random",
        None,
        "L; in training, a sentence's n positions are drawn from 0 to L - 1 and sorted (Ruoss et al. "
        "2023), with float:L from the real numbers of [0, L] (random float sampling); in evaluation they lie "
        "evenly, L over the source's length apart",
    ),
)


@dataclass(frozen=True)
class Stretching:
    """Hold the range of factors lambda, and whether their logarithm is drawn uniformly."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def read(cls, value: str | None) -> Stretching | None:
        """Parse ``--position-stretch LOW:HIGH[:log]``.

        Raises:
            ValueError: anything but two numbers with 0 < LOW <= HIGH.
        """
        if value is None:
            return None
        words = value.split(":")
        log = words[-1] == "log"
        low, high = _two_numbers(words[:-1] if log else words)
        if not 0 < low <= high < float("inf"):
            raise ValueError(
                "`--position-stretch` must be LOW:HIGH or LOW:HIGH:log with 0 < LOW <= HIGH, such as "
                f"0.5:2.5, but is {value!r} instead."
            )
        return cls(low, high, log)


@dataclass(frozen=True)
class Shifting:
    """Hold the range of shifts Delta: whole numbers below ``high``, or real ones up to it.

    ``fill``: whole numbers that keep a sentence's last token below ``high``.
    """

    low: float
    high: float
    whole: bool = False
    shared: bool = False
    fill: bool = False

    @classmethod
    def read(cls, value: str | None) -> Shifting | None:
        """Parse ``--position-shift K[:shared]``, ``LOW:HIGH[:shared]`` or ``fill:L[:shared]``.

        Raises:
            ValueError: anything but a whole number of at least 2, or two numbers with LOW < HIGH.
        """
        if value is None:
            return None
        words = value.split(":")
        shared = words[-1] == SHARED
        words = words[:-1] if shared else words
        fill = words[:1] == ["fill"]
        if len(words) == 1 + fill and words[-1].isdecimal() and int(words[-1]) >= 2:
            return cls(0, int(words[-1]), True, shared, fill)
        low, high = _two_numbers(words)
        if not -float("inf") < low < high < float("inf"):
            raise ValueError(
                "`--position-shift` must be a whole number of at least 2, such as 500, or LOW:HIGH with "
                f"LOW < HIGH, such as -5:5, or fill:500, each optionally followed by :{SHARED}, but is "
                f"{value!r} instead."
            )
        return cls(low, high, False, shared)

    @property
    def highest(self) -> float:
        return self.high - 1 if self.whole else self.high

    def last(self, num_positions: int) -> float:
        """Return the largest position that the last of ``num_positions`` tokens can get."""
        if self.fill:
            return max(self.high, num_positions) - 1
        return num_positions - 1 + self.highest


@dataclass(frozen=True)
class Drawing:
    """Hold L: positions are drawn from 0 .. L - 1, or from the real numbers of [0, L]."""

    limit: float
    whole: bool = True

    @classmethod
    def read(cls, value: str | None) -> Drawing | None:
        """Parse ``--position-random L`` or ``float:L``.

        Raises:
            ValueError: anything but a whole L of at least 2, or ``float:`` and a positive L.
        """
        if value is None:
            return None
        kind, _, word = value.rpartition(":")
        limit = _number(word)
        whole = kind == ""
        fits = limit >= 2 and limit.is_integer() if whole else kind == "float" and limit > 0
        if not fits or limit == float("inf"):
            raise ValueError(
                "`--position-random` must be a whole number of at least 2, no less than the longest sentence "
                f"has tokens, or float:L with a positive L, such as float:512, but is {value!r} instead."
            )
        return cls(limit, whole)

    @property
    def rows_per_token(self) -> int:
        return 1 if self.whole else max(FINE_ROWS_PER_TOKEN, math.ceil(DRAWN_ROWS / self.limit))


def _number(word: str) -> float:
    """Return a number, which may be a fraction such as 1/1.03; NaN for anything else."""
    top, _, bottom = word.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return math.nan


def _two_numbers(words: list[str]) -> tuple[float, float]:
    """Return two numbers; NaN for anything else."""
    return (_number(words[0]), _number(words[1])) if len(words) == 2 else (math.nan, math.nan)


@dataclass(frozen=True)
class WarpLaw:
    """Hold the laws by which training moves or draws positions.

    Attributes:
        stretch: range of lambda, which a sentence and its translation share; None: 1.
        shift: range of Delta; None: 0.
        jitter: E of eps_i ~ U(-E, E), drawn for each token.
        random: range from which a sentence's n positions are drawn and sorted. Excludes the others.
    """

    stretch: Stretching | None = None
    shift: Shifting | None = None
    jitter: float = 0.0
    random: Drawing | None = None

    @classmethod
    def read(cls, args: Any) -> WarpLaw | None:
        """Return the law that complete options name; None if training leaves positions alone.

        Raises:
            ValueError: a value is invalid.
        """
        law = cls(
            Stretching.read(args.position_stretch),
            Shifting.read(args.position_shift),
            args.position_jitter or 0.0,
            Drawing.read(args.position_random),
        )
        return None if law == cls() else law

    @property
    def rows_per_token(self) -> int:
        """Return r; positions are rounded to 1/r of a token."""
        if self.random is not None:
            return self.random.rows_per_token
        if self.jitter or (self.shift is not None and not self.shift.whole):
            return FINE_ROWS_PER_TOKEN
        return 1 if self.stretch is None else ROWS_PER_TOKEN

    def reach(self, num_positions: int) -> tuple[int, int]:
        """Return how many rows lie before position 0, and how many from it on, for any draw.

        The law sets both numbers. Reading the draw would take a transfer from the GPU.

        Args:
            num_positions: n, the number of tokens.
        """
        if self.random is not None:
            rows = math.ceil(self.random.limit * self.rows_per_token)
            return 0, rows + (not self.random.whole)
        highest = 1.0 if self.stretch is None else self.stretch.high
        shift = self.shift or Shifting(0, 0)
        last = shift.last(num_positions) + self.jitter
        before = max(0.0, self.jitter - shift.low)
        rows = self.rows_per_token
        return math.ceil(before * highest * rows), math.ceil(max(last, 0) * highest * rows) + 2

    def furthest(self, num_positions: int) -> int:
        """Return the largest distance, in whole tokens, that ``num_positions`` tokens can get."""
        if self.random is not None:
            return int(self.random.limit) - self.random.whole
        factor = 1.0 if self.stretch is None else self.stretch.high
        return int((num_positions - 1 + 2 * self.jitter) * factor)
