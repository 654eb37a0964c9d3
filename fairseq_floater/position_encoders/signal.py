"""Define the first kind of position encoder: a signal that is added to the stream of a block.

A *signal* is a float32 table of rows over token positions, [N, streams, blocks, C], added to the
input of blocks (target ``hidden``) or to the projected queries, keys and values of attention
(target ``qkv``).

Letters: N positions, S streams, L blocks that receive positions, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec, PositionEncoder
from fairseq_floater.position_encoders.options import CONCAT, MULTIPLY
from fairseq_floater.position_encoders.transforms import At, gather_rows

HIDDEN, QKV = "hidden", "qkv"
HIDDEN_STREAMS = ("hidden",)
SELF_STREAMS = ("q", "k", "v")
CROSS_QUERY_STREAMS = ("cross_q",)
SOURCE_STREAMS = ("cross_k", "cross_v")


def encoder_streams(target: str) -> tuple[str, ...]:
    return HIDDEN_STREAMS if target == HIDDEN else SELF_STREAMS


def decoder_streams(target: str, has_cross_attention: bool = True) -> tuple[str, ...]:
    if target == HIDDEN or not has_cross_attention:
        return encoder_streams(target)
    return SELF_STREAMS + CROSS_QUERY_STREAMS


class StartingPoints(BlockPositions):
    """Hold one free vector for each stream of a block: ``values`` [S, C].

    They are drawn around the neutral row with deviation ``std``; with target ``qkv`` they are that row.
    """

    std: ClassVar[float]

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        std = 0.0 if spec.target == QKV else self.std
        self.values = nn.Parameter(spec.neutral + torch.randn(len(spec.streams), spec.dim) * std)


class PositionSignal(PositionEncoder):
    """Compute a table of rows [N, S, L, C]; subclasses say how.

    Rows p_i enter a block's input x_i (target ``hidden``) as ``--position-combine`` says: x_i + p_i,
    x_i * p_i by channel, or x_i W_x + p_i W_p + b. The stack owns W_x, W_p and b; they start as the
    identity and zero, which is the sum. Parameters of ``concat``: 2 C^2 + C a stack.
    """

    targets: ClassVar[tuple[str, ...]] = (HIDDEN, QKV)
    combines = True

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.joint: nn.Linear | None = None
        if spec.combine == CONCAT:
            # Draws no random numbers: what comes next starts as it does with the sum.
            self.joint = nn.utils.skip_init(nn.Linear, 2 * spec.dim, spec.dim)
            with torch.no_grad():
                self.joint.weight.copy_(torch.eye(spec.dim).repeat(1, 2))
                self.joint.bias.zero_()

    def token_rows(self, at: At, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
        """Return a row for each query, sentence by sentence, [B * T, S, L, C]; None: it is the table's."""
        return None

    def enter(self, x: Tensor, table: Tensor, positions: Tensor) -> Tensor:
        """Let rows enter a block's input ``x`` [T, B, C]; returns the same shape.

        Args:
            x: the stream.
            table: the block's rows, [N, C].
            positions: the row of each token, [T, B or 1]; [0]: token i of every sentence has row i.
        """
        if self.joint is None:
            rows = gather_rows(table, positions)
            return x * rows if self.spec.combine == MULTIPLY else x + rows
        of_x, of_rows = self.joint.weight.chunk(2, dim=1)
        bias = self.joint.bias
        if 0 < positions.numel() < len(table):  # a step of decoding: project what it reads alone
            return F.linear(x, of_x) + F.linear(gather_rows(table, positions), of_rows, bias)
        return F.linear(x, of_x) + gather_rows(F.linear(table, of_rows, bias), positions)

    def adopt_donor(
        self,
        blocks: Sequence[Any],
        attentions: Sequence[Any],
        rows: Callable[[int], Tensor],
        stays: bool,
    ) -> str:
        note = super().adopt_donor(blocks, attentions, rows, stays)
        if self.joint is None or not stays:
            return note
        self.joint.weight.detach()[:, self.spec.dim :].zero_()
        return "the map of concat passes the block's input on, and no positions"
