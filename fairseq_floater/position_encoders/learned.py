"""Learn position embeddings: a table of free rows per block, of fixed length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec
from fairseq_floater.position_encoders.options import MULTIPLY, Option
from fairseq_floater.position_encoders.signal import HIDDEN, PositionSignal
from fairseq_floater.position_encoders.transforms import Places

# Initial standard deviation of rows that multiply the embedding.
PRODUCT_STD = 0.02


class LearnedRows(BlockPositions):
    """Hold the rows of one block: ``weight`` [R, S, C].

    They start as fairseq initialises its table; rows that multiply start close to one.
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        weight = torch.empty(num_trained(spec), len(spec.streams), spec.dim)
        std = PRODUCT_STD if spec.combine == MULTIPLY else spec.dim**-0.5
        self.weight = nn.Parameter(nn.init.normal_(weight, mean=spec.neutral, std=std))


def num_trained(spec: EncoderSpec) -> int:
    """Return R: one row a position, or n for a hierarchy."""
    return spec.options["learned_hierarchy"] or spec.max_positions


def hierarchical_rows(rows: Tensor, num_positions: int, alpha: float) -> Tensor:
    """Extend ``rows`` p [n, ...] to N <= n^2 rows: float32 [N, ...].

    Row i is alpha u_(i div n) + (1 - alpha) u_(i mod n), with u_r = (p_r - alpha p_0) / (1 - alpha). The
    first n rows are then p itself and are returned unchanged.

    Args:
        rows: the trained rows.
        num_positions: N.
        alpha: share of the high digit of i, above 0 and below 1.
    """
    count = len(rows)
    if num_positions <= count:
        return rows[:num_positions]
    digits = (rows - alpha * rows[0]) / (1 - alpha)
    further = torch.arange(count, num_positions, device=rows.device)
    high, low = digits[further // count], digits[further % count]
    return torch.cat([rows, alpha * high + (1 - alpha) * low])


class LearnedPositions(PositionSignal):
    """Learn one free vector a position, one table a block (N L_max d parameters for "all blocks").

    The table replaces fairseq's sinusoid. Rows past the longest training sentence are never trained.
    Token i uses row i of --max-source/target-positions rows.

    ``--learned-hierarchy`` n trains n rows and makes n^2 rows of them: i is read as a number of two digits
    to the base n (:func:`hierarchical_rows`). n must not exceed the tokens of the longest training
    sentence, or untrained rows enter far positions. The vector jumps from row n - 1 to row n.

    Shapes: table [N, S, L, C].
    """

    name = "learned"
    title = "learned embedding"
    formula = "a free vector for each i"
    source = "Gehring et al. 2017; paper, section 4.1; hierarchy: Su 2020"
    part = LearnedRows
    base = "replaced"
    inductive = False
    parameter_efficient = False
    options = (
        Option(
            "--learned-hierarchy",
            0,
            "train n rows and make n^2 of them; 0: train a row for every position",
            int,
            at_least=2,
            or_zero=True,
            why="; with 0 each position has a row.",
        ),
        Option(
            "--learned-hierarchy-alpha",
            0.4,
            "share of i div n in row i; the rest is of i mod n",
            float,
            above=0,
            below=1,
        ),
    )

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        if options["learned_hierarchy_alpha"] == 0.5:
            yield (
                "`--learned-hierarchy-alpha` must be another number than 0.5, which gives positions a n + b "
                "and b n + a the same vector, but is 0.5 instead."
            )

    @property
    def max_positions(self) -> int:
        hierarchy = self.spec.options["learned_hierarchy"]
        return hierarchy**2 or self.spec.max_positions

    @property
    def length_option(self) -> str:
        hierarchy = self.spec.options["learned_hierarchy"]
        return "--learned-hierarchy" if hierarchy else super().length_option

    def rows(self, places: Places, blocks: Sequence[LearnedRows]) -> Tensor:
        rows = torch.stack([block.weight[: places.count].float() for block in blocks], dim=2)
        alpha = self.spec.options["learned_hierarchy_alpha"]
        return hierarchical_rows(rows, places.count, alpha)

    def adopt_donor(
        self, blocks: Sequence[LearnedRows], rows: Callable[[int], Tensor], stays: bool
    ) -> str:
        """Start as the donor's positions or, if they stay underneath, as rows that change nothing.

        With target ``hidden`` the first block takes over the donor's rows. Its rows past the trained length
        stay random, because the sinusoid there would be an unfair advantage. All other blocks, and
        every block with target ``qkv``, start at zero. Rows that multiply cannot replace rows that were
        added.
        """
        spec, note = self.spec, super().adopt_donor(blocks, rows, stays)
        if stays and self.joint is not None:
            return note  # if the rows were zero too, neither they nor the map would learn
        if spec.combine == MULTIPLY and not stays:
            return note
        takes = spec.target == HIDDEN and not stays
        taken = rows(num_trained(spec)) if takes else torch.zeros(0, spec.dim)
        for block in blocks:
            weight = block.weight.detach()
            if takes and block is blocks[0]:
                weight[: len(taken), 0] = taken.to(weight)
            else:
                weight.fill_(spec.neutral)
        if not takes:
            return f"learned rows start at {spec.neutral:g}, which changes nothing"
        rows_taken = f"{len(taken)} of its {num_trained(spec)} rows"
        return (
            f"block {blocks[0].block_index + 1} starts as the donor's positions in {rows_taken}, "
            "random in those that follow; the other blocks start at zero"
        )
