"""Count the segments of a document, such as sentences on one line; a separator ends a segment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.shared_options import encoder_options
from fairseq_floater.position_encoders.transforms import Warp

SEGMENTS: Option = Option(
    "--position-segments",
    False,
    "two numbers a token: its place in the segment, and the segment's number (BiPE, He et al. 2024)",
    bool,
)


@dataclass(frozen=True)
class Segments(Warp):
    """Hold the segment of each token of B sentences of T tokens.

    Attributes:
        numbers: the token's segment, from 0, [B, T]: the number of separators before the token.
        gap: tokens that each new segment adds to the position; None: the position is the segment (BiPE).
    """

    numbers: Tensor
    gap: Fraction | None

    @classmethod
    def of(cls, separator: int, gap: Fraction | None, words: Tensor) -> Segments:
        """Return the segments of ``words`` [B, T]; a separator belongs to the segment that it ends."""
        ends = (words == separator).long()
        return cls(ends.cumsum(1) - ends, gap)

    @property
    def rows_per_token(self) -> int:
        return 1 if self.gap is None else self.gap.denominator

    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        if self.gap is None:
            return self.numbers, positions.size(1), 0
        rows = positions * self.gap.denominator + self.numbers * self.gap.numerator
        return rows, int(rows.max()) + 1, 0

    def inside(self, positions: Tensor) -> Tensor | None:
        if self.gap is not None:
            return None
        begins = F.pad(self.numbers.diff(dim=1), (1, 0)) > 0
        return positions - (positions * begins).cummax(dim=1).values


def gap_in_tokens(options: dict[str, Any]) -> Fraction:
    """Return ``--floater-gap`` in tokens; its denominator is the number of table rows per token.

    Raises:
        ValueError: there would be more than 100 rows per token.
    """
    gap, delta = options["floater_gap"], options["floater_delta"]
    tokens = Fraction(gap / delta).limit_denominator(100)
    if not math.isclose(tokens * delta, gap, rel_tol=1e-9):
        raise ValueError(
            "`--floater-gap` must be a multiple of `--floater-delta` or of a whole part of it, down to "
            f"1/100, but is {gap} with {delta} instead: the table has a row at each such part of a token."
        )
    return tokens


def segment_reader(cfg: Any, dictionary: Any, side: str) -> Callable[[Tensor], Segments] | None:
    """Return a function that reads the segments of words; None if complete options do not use them.

    Raises:
        ValueError: the dictionary of ``side`` lacks the separator.
    """
    word = cfg.position_separator
    if word is not None and word not in dictionary:
        raise ValueError(
            f"`--position-separator` must be a word of the {side} dictionary, but is {word!r} instead."
        )
    options = encoder_options(cfg)
    gap = gap_in_tokens(options) if options.get("floater_gap") else None
    if word is None or (gap is None and not cfg.position_segments):
        return None
    return partial(Segments.of, dictionary.index(word), gap)
