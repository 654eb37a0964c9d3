"""Define the first kind of position encoder: a signal that is added to the stream of a block.

A *signal* is a float32 table of rows over token positions, [N, streams, blocks, C], added to the
input of blocks (target ``hidden``) or to the projected queries, keys and values of attention
(target ``qkv``).

Letters: N positions, S streams, L blocks that receive positions, C channels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec, PositionEncoder

HIDDEN, QKV = "hidden", "qkv"
HIDDEN_STREAMS = ("hidden",)
SELF_STREAMS = ("q", "k", "v")
CROSS_QUERY_STREAMS = ("cross_q",)
SOURCE_STREAMS = ("cross_k", "cross_v")


class StartingPoints(BlockPositions):
    """Hold one free vector for each stream of a block: ``values`` [S, C]."""

    def __init__(self, block_index: int, spec: EncoderSpec, std: float):
        super().__init__(block_index)
        self.values = nn.Parameter(torch.randn(len(spec.streams), spec.dim) * std)


class PositionSignal(PositionEncoder):
    """Compute a table of rows [N, S, L, C]; subclasses say how."""

    targets = (HIDDEN, QKV)

    @abstractmethod
    def compute(self, num_positions: int, blocks: Sequence[Any]) -> Tensor:
        """Compute rows 0 .. N - 1 from the parts of the blocks: float32 [N, S, len(blocks), C]."""
