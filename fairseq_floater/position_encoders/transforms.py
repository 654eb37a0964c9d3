"""Number the tokens: each by its place among the real ones, stretched in training.

Letters: N rows of a table, C channels, B sentences, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Stretched positions are rounded to a quarter of a token.
ROWS_PER_TOKEN = 4
# Multiples of the golden ratio, taken modulo 1, stay well apart from each other.
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def token_positions(is_padding: Tensor) -> Tensor:
    """Count the real tokens from 0, wherever the padding stands.

    Shapes: ``is_padding`` [B, T] bool -> [B, T] int64. A padded slot takes the position of the
    token before it (0 if there is none): attention masks it out, it only has to be a valid row.
    """
    return ((~is_padding).cumsum(1) - 1).clamp_(min=0)


def gather_rows(table: Tensor, positions: Tensor) -> Tensor:
    """Gather rows of ``table`` [N, C] by time-first ``positions`` [T, B or 1]: [T, B or 1, C]."""
    return F.embedding(positions, table)


@dataclass(frozen=True)
class Stretch:
    """Hold the factors of ``--position-stretch`` for one batch, drawn at every training update.

    Attributes:
        factors: [B, 1], the same for a sentence and its translation.
        highest: upper end of the range they come from.
    """

    factors: Tensor
    highest: float

    @classmethod
    def drawn(cls, limits: tuple[float, float], sentences: int, device: torch.device) -> Stretch:
        """Draw uniformly within ``limits``, from random numbers that fairseq seeds anew at every update.

        It seeds every process alike: process r turns its numbers within the range by r golden ratios.

        Args:
            limits: low and high end of the range.
            sentences: B.
            device: of the factors.
        """
        from fairseq.distributed.utils import get_global_rank  # slow to import

        low, high = limits
        width = high - low
        factors = torch.empty(sentences, 1, device=device).uniform_(low, high)
        turned = factors + width * (get_global_rank() * GOLDEN_RATIO % 1)
        return cls(torch.where(turned > high, turned - width, turned), high)

    def rows(self, positions: Tensor, num_positions: int) -> tuple[Tensor, int]:
        """Find the nearest rows [B, T] of a table of :data:`ROWS_PER_TOKEN`, and count those it needs.

        The number follows from the range, not from the draw, which would have to come off the GPU.
        """
        rows = (positions * self.factors * ROWS_PER_TOKEN).round().long()
        return rows, math.ceil((num_positions - 1) * self.highest * ROWS_PER_TOKEN) + 2
