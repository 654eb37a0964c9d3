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

from fairseq_floater.position_encoders.base import (
    CROSS_STREAMS,
    BlockPositions,
    EncoderSpec,
    PositionEncoder,
)
from fairseq_floater.position_encoders.options import CONCAT, MULTIPLY
from fairseq_floater.position_encoders.shared_options import OFF
from fairseq_floater.position_encoders.transforms import Positions, gather_rows

HIDDEN, QKV = "hidden", "qkv"
HIDDEN_STREAMS = ("hidden",)
SELF_STREAMS = ("q", "k", "v")
CROSS_QUERY_STREAMS = ("cross_q",)


def encoder_streams(target: str) -> tuple[str, ...]:
    return HIDDEN_STREAMS if target == HIDDEN else SELF_STREAMS


def decoder_streams(target: str, has_cross_attention: bool = True) -> tuple[str, ...]:
    if target == HIDDEN or not has_cross_attention:
        return encoder_streams(target)
    return SELF_STREAMS + CROSS_QUERY_STREAMS


def source_streams(args: Any, crosses: bool = True) -> tuple[str, ...]:
    """Return the streams of the decoder's encoder of source positions; empty if it has none.

    Args:
        args: the model's options, complete.
        crosses: whether the decoder attends to the source.
    """
    if args.position_target == QKV and crosses:
        return ("cross_k", "cross_v")
    return () if args.position_cross == OFF else CROSS_STREAMS


class StartingPoints(BlockPositions):
    """Hold one free vector for each stream of a block: ``values`` [S, C].

    They are drawn around the neutral row with standard deviation ``std`` (target ``qkv``: 0).
    """

    std: ClassVar[float]

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        std = 0.0 if spec.target == QKV else self.std
        self.values = nn.Parameter(spec.neutral + torch.randn(len(spec.streams), spec.dim) * std)


class PositionSignal(PositionEncoder):
    """Compute a table of rows [N, S, L, C]; subclasses define the rows.

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
            # Draws no random numbers, so that later parameters start as they do with the sum.
            self.joint = nn.utils.skip_init(nn.Linear, 2 * spec.dim, spec.dim)
            with torch.no_grad():
                self.joint.weight.copy_(torch.eye(spec.dim).repeat(1, 2))
                self.joint.bias.zero_()

    def token_rows(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
        """Return a row for each query, sentence by sentence, [B * T, S, L, C]; None: use the table's rows."""
        return None

    def enter(self, x: Tensor, table: Tensor, positions: Tensor | None) -> Tensor:
        """Combine a block's input ``x`` [T, B, C] with its rows; the shape stays.

        Args:
            x: the input.
            table: the block's rows, [N, C].
            positions: each token's row, as :func:`gather_rows` takes them.
        """
        if self.joint is None:
            rows = gather_rows(table, positions)
            return x * rows if self.spec.combine == MULTIPLY else x + rows
        of_x, of_rows = self.joint.weight.chunk(2, dim=1)
        bias = self.joint.bias
        if positions is not None and 0 < positions.numel() < len(table):  # fewer tokens than rows
            return F.linear(x, of_x) + F.linear(gather_rows(table, positions), of_rows, bias)
        return F.linear(x, of_x) + gather_rows(F.linear(table, of_rows, bias), positions)

    def adopt_donor(self, blocks: Sequence[Any], rows: Callable[[int], Tensor], stays: bool) -> str:
        note = super().adopt_donor(blocks, rows, stays)
        if self.joint is None or not stays:
            return note
        self.joint.weight.detach()[:, self.spec.dim :].zero_()
        return "the map of concat passes the block's input on, and no positions"
