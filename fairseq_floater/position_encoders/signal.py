"""Define the first kind of position encoder: a signal that is added to the stream of a block.

A *signal* is a float32 table of rows over token positions, [N, streams, blocks, C], added to the
input of blocks (target ``hidden``) or to the projected queries, keys and values of attention
(target ``qkv``).

Letters: N positions, S streams, L blocks that receive positions, C channels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec, PositionEncoder

HIDDEN_STREAMS = ("hidden",)
SELF_STREAMS = ("q", "k", "v")
CROSS_QUERY_STREAMS = ("cross_q",)
SOURCE_STREAMS = ("cross_k", "cross_v")


@dataclass(frozen=True, kw_only=True)
class SignalSpec(EncoderSpec):
    """Say where a signal goes: a stack's own positions, or a decoder's view of source positions.

    Attributes:
        streams: what the signal is added to, see the ``*_STREAMS`` constants.
    """

    streams: tuple[str, ...]


class StartingPoints(BlockPositions):
    """Hold one free vector for each stream of a block: ``values`` [S, C]."""

    def __init__(self, block_index: int, spec: SignalSpec, std: float):
        super().__init__(block_index)
        self.values = nn.Parameter(torch.randn(len(spec.streams), spec.dim) * std)


class PositionSignal(PositionEncoder):
    """Compute a table of rows [N, S, L, C]; subclasses say how."""

    targets = ("hidden", "qkv")
    spec: SignalSpec

    def __init__(self, spec: SignalSpec):
        super().__init__(spec)

    @abstractmethod
    def compute(self, num_positions: int, blocks: Sequence[Any]) -> Tensor:
        """Compute rows 0 .. N - 1 from the parts of the blocks: float32 [N, S, len(blocks), C]."""

    def compute_between(self, num_rows: int, rows_per_token: int, blocks: Sequence[Any]) -> Tensor:
        """Compute rows at token positions 0, 1/r, 2/r, ...: float32 [N, S, len(blocks), C].

        ``continuous`` signals have them.

        Args:
            num_rows: N.
            rows_per_token: r.
            blocks: the parts of the blocks that receive positions.
        """
        raise NotImplementedError(f"{self.name} has no positions between two tokens.")

    def forward(
        self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype, rows_per_token: int = 1
    ) -> Tensor:
        """Return the table [N, S, len(blocks), C] in ``dtype``, computed or kept.

        With ``rows_per_token`` > 1 (training on stretched positions only) the N rows are that much
        closer, and nothing is kept. Other arguments and errors as in :class:`PositionEncoder`.
        """
        if rows_per_token == 1:
            return super().forward(num_positions, blocks, dtype)
        return self._cast(
            lambda: self.compute_between(num_positions, rows_per_token, blocks), blocks, dtype
        )
