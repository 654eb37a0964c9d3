"""Learn position embeddings: a table of free rows per block, of fixed length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec
from fairseq_floater.position_encoders.options import MULTIPLY
from fairseq_floater.position_encoders.signal import PositionSignal

# Of rows that multiply the embedding, at the start.
PRODUCT_STD = 0.02


class LearnedRows(BlockPositions):
    """Hold the rows of one block: ``weight`` [max positions, S, C].

    They start as fairseq initialises its own; rows that multiply start close to one.
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index)
        weight = torch.empty(spec.max_positions, len(spec.streams), spec.dim)
        std = PRODUCT_STD if spec.combine == MULTIPLY else spec.dim**-0.5
        self.weight = nn.Parameter(nn.init.normal_(weight, mean=spec.neutral, std=std))


class LearnedPositions(PositionSignal):
    """Learn one free vector a position, one table a block (N L_max d parameters for "all blocks").

    It replaces fairseq's sinusoid instead of standing on it. Rows past the longest training
    sentence are never trained. Token i uses row i; there are --max-source/target-positions rows.

    Shapes: table [N, S, L, C].
    """

    name = "learned"
    title = "learned embedding"
    formula = "a free vector for each i"
    source = "Gehring et al. 2017; paper, section 4.1"
    keeps_base = False
    inductive = False
    data_driven = True
    parameter_efficient = False

    def build_block(self, block_index: int) -> nn.Module:
        return LearnedRows(block_index, self.spec)

    @property
    def max_positions(self) -> int:
        return self.spec.max_positions

    def compute(self, num_positions: int, blocks: Sequence[LearnedRows]) -> Tensor:
        return torch.stack([block.weight[:num_positions].float() for block in blocks], dim=2)

    def adopt_base(self, blocks: Sequence[LearnedRows], rows: Tensor) -> None:
        """Start as a donor's positions ``rows`` [n, C] and keep its function up to position n.

        Block 1 takes them (target ``hidden``: where the donor had them); its further rows stay
        random, because a sinusoid past the trained length would be an unfair head start. All
        other blocks, and every block of target ``qkv``, start at zero.
        """
        with torch.no_grad():
            for block in blocks:
                if self.spec.target == "hidden" and block.block_index == 0:
                    block.weight[: len(rows), 0] = rows.to(block.weight)
                else:
                    block.weight.zero_()
