"""Compute the fixed sinusoid (paper, equations 6 and 7) in fairseq's layout and offset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_floater.position_encoders.base import BlockPositions
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.transforms import Places


def sinusoid_rows(num_positions: int, dim: int, padding_idx: int) -> Tensor:
    """Return fairseq's sinusoid of token positions 0 .. N - 1: float32 [N, C].

    fairseq lays it out as [sines | cosines], spaces its frequencies over C / 2 - 1 steps, and counts
    the first token as padding_idx + 1: equation 6 up to order, spacing and offset.
    """
    offset = padding_idx + 1
    return _fairseqs_rows(num_positions + offset, dim, padding_idx)[offset:]


def _fairseqs_rows(num_rows: int, dim: int, padding_idx: int | None) -> Tensor:
    from fairseq.modules import SinusoidalPositionalEmbedding  # slow: tools read this file's names

    rows: Tensor = SinusoidalPositionalEmbedding.get_embedding(num_rows, dim, padding_idx)
    return rows


def sinusoid_at(places: Tensor, dim: int, padding_idx: int) -> Tensor:
    """Compute :func:`sinusoid_rows` at real positions ``places`` [N] on the CPU: float32 [N, C]."""
    half = dim // 2
    frequencies = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half))
    angles = (places.float() + padding_idx + 1).unsqueeze(1) * frequencies
    rows = torch.cat([angles.sin(), angles.cos()], dim=1)
    return rows if dim % 2 == 0 else torch.nn.functional.pad(rows, (0, 1))


def pair_frequencies(
    pairs: int, base: float = 10_000.0, device: torch.device | None = None
) -> Tensor:
    """Return w_c = base^(-c / P) for the pairs of channels c = 0 .. P - 1: float64 [P]."""
    exponents = torch.arange(pairs, dtype=torch.float64, device=device)
    frequencies: Tensor = base ** (-exponents / pairs)
    return frequencies


def interleaved_sinusoid(places: Tensor, dim: int, frequencies: Tensor | None = None) -> Tensor:
    """Return sin(t w_c) and cos(t w_c) in channels 2c and 2c + 1, for places t: float32 [..., D].

    Args:
        places: real numbers of any sign, [...]; float64 keeps far ones exact.
        dim: D, even.
        frequencies: w, [D / 2]; None: w_c = 10000^(-2c/D).
    """
    if frequencies is None:
        frequencies = pair_frequencies(dim // 2, device=places.device)
    angles = places[..., None] * frequencies.to(places)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


def block_term(block_number: int, dim: int) -> Tensor:
    """Return the second summand of equation 7 for block n = 1, 2, ...: sin and cos of n; float32 [C]."""
    return _fairseqs_rows(block_number + 1, dim, None)[block_number]


class SinusoidalPositions(PositionSignal):
    """Compute equation 7: block n adds sinusoid(i) + sinusoid(n).

    Where fairseq's ``embed_positions`` stands underneath, that is the sinusoid: with target ``hidden`` the
    first block gets no second one, and at ``input`` the model is fairseq's Transformer exactly. Another
    ``--position-combine`` than ``add`` takes the base's place.

    Shapes: table [N, S, L, C]; nothing is learned; any length.
    """

    name = "sinusoidal"
    title = "sinusoidal"
    formula = "sin, cos of i c^(j/d); all blocks: + sin, cos of n c^(j/d)"
    source = "Vaswani et al. 2017; Dehghani et al. 2019; paper's equations 6, 7"
    data_driven = False
    base = "itself"
    forms = ("--blocks input", "")  # fairseq's Transformer, and the control of the other signals
    continuous = True
    before_start = True

    def receives(self, block_index: int) -> bool:
        if self._base_does and self.spec.input_alone:
            return False  # fairseq's base does it
        return super().receives(block_index)

    @property
    def _base_does(self) -> bool:
        spec = self.spec
        return spec.target == "hidden" and spec.combine == ADD and spec.base

    def rows(self, places: Places, blocks: Sequence[BlockPositions]) -> Tensor:
        spec = self.spec
        if places.per_token == 1:  # fairseq's table bit for bit
            sinusoid = sinusoid_rows(places.count, spec.dim, spec.padding_idx)
        else:
            sinusoid = sinusoid_at(places.in_tokens(), spec.dim, spec.padding_idx)
        per_block = []
        for block in blocks:
            from_base = self._base_does and block.block_index == 0
            rows = torch.zeros_like(sinusoid) if from_base else sinusoid
            if not spec.input_alone:
                rows = rows + block_term(block.block_index + 1, spec.dim)
            per_block.append(rows)
        table = torch.stack(per_block, dim=1).unsqueeze(1).to(self.anchor.device)  # [N, 1, L, C]
        return table.expand(-1, len(spec.streams), -1, -1)
