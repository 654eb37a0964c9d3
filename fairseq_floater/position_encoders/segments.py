"""Count the segments of a document, which a separator ends: sentences that were joined to one line.

Letters: B sentences, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.position_encoders.floater_options import gap_in_tokens
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.shared_options import encoder_options
from fairseq_floater.position_encoders.transforms import Warp

SEGMENTS = Option(
    "--position-segments",
    False,
    "two numbers a token, the place in its segment and the segment's, which --position-separator ends "
    "(BiPE, He et al. 2024)",
    bool,
)


@dataclass(frozen=True)
class Segments(Warp):
    """Say in which segment each token stands.

    Attributes:
        numbers: of the segments, from 0, [B, T]: the separators before each token.
        gap: tokens by which time moves on where a segment begins; None: positions are segments (BiPE).
    """

    numbers: Tensor
    gap: Fraction | None = None

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


@dataclass(frozen=True)
class SegmentLaw:
    """Say by which word of a dictionary segments end, and what a new one changes."""

    separator: int
    gap: Fraction | None

    @classmethod
    def read(cls, cfg: Any, dictionary: Any, side: str) -> SegmentLaw | None:
        """Return the law that complete options name; None where segments change nothing.

        Raises:
            ValueError: the dictionary of ``side`` lacks the separator.
        """
        word = cfg.position_separator
        if word is None:
            return None
        if word not in dictionary:
            raise ValueError(
                f"`--position-separator` must be a word of the {side} dictionary, but is {word!r} instead, "
                "which it lacks."
            )
        if cfg.position_segments:
            return cls(dictionary.index(word), None)
        options = encoder_options(cfg)
        gap = gap_in_tokens(options) if "floater_gap" in options else None
        return cls(dictionary.index(word), gap) if gap else None

    def of(self, words: Tensor) -> Segments:
        """Return the segments of ``words`` [B, T]; a separator belongs to the one that it ends."""
        ends = (words == self.separator).long()
        return Segments(ends.cumsum(1) - ends, self.gap)
