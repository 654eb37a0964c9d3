"""Number the tokens: each by its place among the real ones, stretched in training.

Letters: N rows of a table, C channels, B sentences, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

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


class At(NamedTuple):
    """Say where queries and keys stand, in units of a token divided by ``rows_per_token``.

    Attributes:
        queries: [B or 1, T], int64.
        keys: [B or 1, S], int64; while decoding they include all tokens before the query.
        num_rows: N, more than any position.
        rows_per_token: 1, but for stretched training.
    """

    queries: Tensor
    keys: Tensor
    num_rows: int
    rows_per_token: int = 1

    @property
    def distances(self) -> Tensor:
        """Return d = i - j, [B or 1, T, S]: positive where the key comes first."""
        return self.queries[:, :, None] - self.keys[:, None, :]


@dataclass(frozen=True)
class Tokens:
    """Describe the tokens of one batch on one side.

    Attributes:
        is_padding: [B, T] bool.
        has_padding: anywhere.
        padding_at_ends: no token stands between two padded slots of a sentence.
        padding_behind: all of it follows its sentence, so that a causal mask hides it.
        last_only: only the last token asks for positions, as in a step of decoding.
        stretch: of each sentence, or None.
    """

    is_padding: Tensor
    has_padding: bool
    padding_at_ends: bool
    padding_behind: bool
    last_only: bool = False
    stretch: Stretch | None = None

    @classmethod
    def read(
        cls, is_padding: Tensor, last_only: bool = False, stretch: Stretch | None = None
    ) -> Tokens:
        """Look where the padding of ``is_padding`` [B, T] stands; reads the device once or twice."""
        if not bool(is_padding.any()):
            return cls(is_padding, False, True, True, last_only, stretch)
        changes = (is_padding[:, 1:] ^ is_padding[:, :-1]).sum(1).max()
        changes, in_front = torch.stack([changes, is_padding[:, 0].any().long()]).tolist()
        at_ends = changes <= 1
        return cls(is_padding, True, at_ends, at_ends and not in_front, last_only, stretch)

    def at(self, slots_do: bool) -> At:
        """Number the tokens; with ``slots_do``, by their slots where padding stands at the ends.

        Without padding one row of numbers serves all sentences.
        """
        # Stretched positions are rounded: from the first token on, or padding would tell.
        slots_do = slots_do and self.padding_at_ends and self.stretch is None
        if slots_do or not self.has_padding:
            keys = torch.arange(self.is_padding.size(1), device=self.is_padding.device)[None]
        else:
            keys = token_positions(self.is_padding)
        num_rows, rows_per_token = self.is_padding.size(1), 1
        if self.stretch is not None:
            keys, num_rows = self.stretch.rows(keys, num_rows)
            rows_per_token = ROWS_PER_TOKEN
        queries = keys[:, -1:] if self.last_only else keys
        return At(queries, keys, num_rows, rows_per_token)
