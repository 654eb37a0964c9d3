"""Draw the positions of a training sentence's tokens, by the laws in `warp_law.py`.

Letters: B sentences, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_floater.position_encoders.eval_law import (
    INTERPOLATE,
    INTERPOLATED_ROWS_PER_TOKEN,
    EvalLaw,
)
from fairseq_floater.position_encoders.transforms import Warp, token_positions
from fairseq_floater.position_encoders.warp_law import Drawing, Shifting, Stretching, WarpLaw

# Multiples of the golden ratio, taken modulo 1, stay well apart from each other.
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def uniform(low: float, high: float, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Draw float32 numbers uniformly from [low, high]; fairseq seeds the generator at every update.

    fairseq seeds all processes alike, so process r rotates its numbers within the range by r golden ratios.

    Args:
        low: lower end of the range.
        high: upper end of the range.
        shape: of the result.
        device: of the result.
    """
    from fairseq.distributed.utils import get_global_rank  # slow to import

    width = high - low
    drawn = torch.empty(shape, device=device).uniform_(low, high)
    turned = drawn + width * (get_global_rank() * GOLDEN_RATIO % 1)
    return torch.where(turned > high, turned - width, turned)


@dataclass(frozen=True)
class DrawnWarp(Warp):
    """Hold the numbers drawn for the tokens of one side, at one training update.

    Attributes:
        law: the law that they were drawn by.
        factor: lambda, [B, 1], the same for a sentence and its translation; None: 1.
        shift: Delta, [B, 1]; None: 0.
        jitter: eps_i, [B, T]; None: 0.
        chosen: the position of each token, [B, T], if the law draws the positions themselves.
    """

    law: WarpLaw
    factor: Tensor | None = None
    shift: Tensor | None = None
    jitter: Tensor | None = None
    chosen: Tensor | None = None

    @classmethod
    def of_source(
        cls, law: WarpLaw, is_padding: Tensor, longest: Tensor | None = None
    ) -> DrawnWarp:
        """Draw by ``law`` for a batch of sources; arguments as for :func:`warp_of_source`."""
        factor = None
        if law.stretch is not None:
            factor = drawn_factors(law.stretch, len(is_padding), is_padding.device)
        return cls(law, factor)._with_unshared(is_padding, longest)

    def of_target(self, is_padding: Tensor) -> DrawnWarp:
        shared = self.law.shift is not None and self.law.shift.shared
        return replace(self, shift=self.shift if shared else None)._with_unshared(is_padding)

    def _with_unshared(self, is_padding: Tensor, longest: Tensor | None = None) -> DrawnWarp:
        """Draw what is not shared with the other side."""
        law, device, shift = self.law, is_padding.device, self.shift
        if law.shift is not None and shift is None:
            if longest is None or not law.shift.shared:
                longest = (~is_padding).sum(1)
            shift = drawn_shifts(law.shift, longest)
        jitter = chosen = None
        if law.jitter:
            jitter = uniform(-law.jitter, law.jitter, (*is_padding.shape,), device)
        if law.random is not None:
            chosen = chosen_positions(law.random, is_padding)
        return replace(self, shift=shift, jitter=jitter, chosen=chosen)

    @property
    def rows_per_token(self) -> int:
        return self.law.rows_per_token

    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        before, behind = self.law.reach(positions.size(1))
        if self.chosen is not None:
            return self.chosen, behind, 0
        places = positions
        for term in (self.shift, self.jitter):
            places = places if term is None else places + term
        if self.factor is not None:
            places = places * self.factor
        rows = (places * self.rows_per_token).round().long()
        return rows + before, before + behind, before


@dataclass(frozen=True)
class EvenSpacing(Warp):
    """Space tokens evenly in evaluation, at the mean of the positions that training draws.

    If n positions are drawn from 1 .. L and sorted, number i = 1 .. n lies at i (L + 1) / (n + 1) on
    average; if they are real and from [0, L], at i L / (n + 1). n is the source's length on both sides,
    because the length of a translation is unknown while it is made. A longer translation goes on past L.
    In a source longer than L, whole positions are one apart and go on past L too.

    Attributes:
        gap: distance between two tokens, [B, 1].
        rows_per_token: r; positions are rounded to 1/r of a token.
        first: the number of the first position.
    """

    gap: Tensor
    rows_per_token: int = 1
    first: int = 1

    @classmethod
    def of_source(cls, law: WarpLaw, is_padding: Tensor) -> EvenSpacing:
        """Return the spacing for the lengths of the sources, from their ``is_padding`` [B, T]."""
        assert law.random is not None
        lengths, limit = (~is_padding).sum(1, keepdim=True), law.random.limit
        if law.random.whole:
            return cls(((limit + 1) / (lengths + 1)).clamp(min=1))
        return cls(limit / (lengths + 1), law.rows_per_token, 0)

    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        rows = ((positions + 1) * self.gap * self.rows_per_token).round().long() - self.first
        return rows, int(rows.max()) + 1, 0


@dataclass(frozen=True)
class SourceLengths(Warp):
    """Leave positions unchanged, and hold n, the tokens of each source, [B, 1]."""

    lengths: Tensor

    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        return positions, positions.size(1), 0


@dataclass(frozen=True)
class Interpolation(SourceLengths):
    """Put token i of n source tokens at i T / max(T, n), so no source passes the trained length T."""

    trained: int = 1

    @property
    def rows_per_token(self) -> int:
        return INTERPOLATED_ROWS_PER_TOKEN

    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        gap = self.trained / self.lengths.clamp(min=self.trained)
        rows = (positions * gap.double() * self.rows_per_token).round().long()
        return rows, int(rows.max()) + 1, 0


def warp_of_source(
    law: WarpLaw | None,
    is_padding: Tensor,
    training: bool,
    longest: Tensor | None = None,
    eval_law: EvalLaw | None = None,
) -> Warp | None:
    """Return the warp of a batch of sources or, of a decoder alone, texts; None: positions are numbers.

    Args:
        law: how training moves positions, or None.
        is_padding: [B, T] bool.
        training: whether the model is in training; evaluation draws nothing.
        longest: tokens of each source or of its translation, whichever has more, [B]; None: of the source.
        eval_law: what evaluation changes, or None; sentences of at most T tokens are not changed.
    """
    if training:
        return None if law is None else DrawnWarp.of_source(law, is_padding, longest)
    if law is not None and law.random is not None:
        return EvenSpacing.of_source(law, is_padding)
    if eval_law is None or not eval_law.reads_lengths:
        return None
    lengths = (~is_padding).sum(1, keepdim=True)
    if int(lengths.max()) <= eval_law.size:
        return None
    if eval_law.kind == INTERPOLATE:
        return Interpolation(lengths, eval_law.size)
    return SourceLengths(lengths)


def drawn_factors(law: Stretching, sentences: int, device: torch.device) -> Tensor:
    """Draw lambda for each of B ``sentences``: [B, 1]."""
    if not law.log:
        return uniform(law.low, law.high, (sentences, 1), device)
    logarithms = uniform(math.log(law.low), math.log(law.high), (sentences, 1), device)
    return logarithms.exp().clamp(law.low, law.high)  # else rounding might leave the table


def drawn_shifts(law: Shifting, lengths: Tensor) -> Tensor:
    """Draw Delta for sentences of ``lengths`` [B] tokens: [B, 1], real or whole numbers by ``law``."""
    shape, device = (len(lengths), 1), lengths.device
    if law.fill:
        room = (law.high + 1 - lengths[:, None]).clamp(min=1)
        return (uniform(0, 1, shape, device) * room).floor().minimum(room - 1)
    drawn = uniform(law.low, law.high, shape, device)
    return drawn.floor().clamp(max=law.highest) if law.whole else drawn


def chosen_positions(law: Drawing, is_padding: Tensor) -> Tensor:
    """Draw as many positions as a sentence has tokens, all sets with equal probability, and sort them.

    Shapes: ``is_padding`` [B, T] -> rows [B, T]; a padded slot gets the row of the token before it.

    Raises:
        ValueError: a sentence has more tokens than positions to draw from.
    """
    positions = token_positions(is_padding)
    lengths = positions.amax(1, keepdim=True) + 1
    if not law.whole:
        places = uniform(0, law.limit, (*is_padding.shape,), is_padding.device)
        beyond = torch.arange(is_padding.size(1), device=places.device) >= lengths
        places = places.masked_fill(beyond, law.limit).sort(dim=1).values.gather(1, positions)
        return (places * law.rows_per_token).round().long()
    limit = int(law.limit)
    kept = min(is_padding.size(1), limit)
    if is_padding.size(1) > limit and int(lengths.max()) > limit:
        raise ValueError(
            "`--position-random` must be at least the number of tokens of the longest sentence, "
            f"{int(lengths.max())}, but is {limit} instead."
        )
    keys = uniform(0, 1, (len(is_padding), limit), is_padding.device)
    drawn = keys.topk(kept, dim=1).indices
    beyond = torch.arange(kept, device=drawn.device) >= lengths
    return drawn.masked_fill(beyond, limit).sort(dim=1).values.gather(1, positions)
