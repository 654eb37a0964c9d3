"""Compute the fixed sinusoid (paper, equations 6 and 7) in fairseq's layout and offset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.segments import SEGMENTS
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.transforms import Places, Positions


def sinusoid_rows(num_positions: int, dim: int, padding_idx: int) -> Tensor:
    """Return fairseq's sinusoid of token positions 0 .. N - 1, bit for bit: float32 [N, C]."""
    return sinusoid_at(torch.arange(num_positions), dim, padding_idx)


def _fairseqs_frequencies(dim: int) -> Tensor:
    half = dim // 2
    return torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half))


def sinusoid_generator(dim: int) -> Tensor:
    """Return A such that fairseq's sinusoid solves dp/di = A p in tokens i: float32 [C, C]."""
    generator, w = torch.zeros(dim, dim), _fairseqs_frequencies(dim)
    sines, cosines = torch.arange(2 * len(w)).chunk(2)
    generator[sines, cosines], generator[cosines, sines] = w, -w
    return generator


def sinusoid_at(places: Tensor, dim: int, padding_idx: int) -> Tensor:
    """Return fairseq's sinusoid at real positions ``places`` [N] on the CPU: float32 [N, C].

    fairseq lays it out as [sines | cosines], spaces its frequencies over C / 2 - 1 steps, and counts
    the first token as padding_idx + 1. The rest is equation 6.
    """
    angles = (places.float() + padding_idx + 1).unsqueeze(1) * _fairseqs_frequencies(dim)
    rows = torch.cat([angles.sin(), angles.cos()], dim=1)
    return rows if dim % 2 == 0 else torch.nn.functional.pad(rows, (0, 1))


def pair_frequencies(
    pairs: int, base: float = 10_000.0, device: torch.device | None = None
) -> Tensor:
    """Return w_c = base^(-c / P) for the pairs of channels c = 0 .. P - 1: float64 [P]."""
    exponents = torch.arange(pairs, dtype=torch.float64, device=device)
    return base ** (-exponents / pairs)


def interleaved_sinusoid(places: Tensor, dim: int, frequencies: Tensor | None = None) -> Tensor:
    """Return sin(t w_c) and cos(t w_c) in channels 2c and 2c + 1, for places t: float32 [..., D].

    Args:
        places: real numbers of any sign, [...]; float64 keeps large ones exact.
        dim: D, even.
        frequencies: w, [D / 2]; None: w_c = 10000^(-2c/D).
    """
    if frequencies is None:
        frequencies = pair_frequencies(dim // 2, device=places.device)
    angles = places[..., None] * frequencies.to(places)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


def block_term(block_number: int, dim: int) -> Tensor:
    """Return the second summand of equation 7 for block n = 1, 2, ...: sin and cos of n; float32 [C]."""
    return sinusoid_at(torch.tensor([block_number]), dim, padding_idx=-1)[0]


class SinusoidalPositions(PositionSignal):
    """Compute equation 7: block n adds sinusoid(i) + sinusoid(n).

    If fairseq's ``embed_positions`` stays underneath, it is the sinusoid: with target ``hidden`` the first
    block gets no second one, and at ``input`` the model is exactly fairseq's Transformer. A
    ``--position-combine`` other than ``add`` replaces this base. So does ``--position-segments``: both
    numbers of BiPE (He et al. 2024) are sinusoids, m the place in the segment and n the segment's number.
    Channels 2c and 2c + 1 are sin and cos of m w_c, channels C/2 + 2c and C/2 + 2c + 1 those of n w_c,
    w_c = 10000^(-4c/C). (A sum, as of token and block, would not tell m and n apart.)

    Shapes: table [N, S, L, C]; nothing is learned; any length.
    """

    name = "sinusoidal"
    title = "sinusoidal"
    formula = "sin, cos of i w; all blocks: + sin, cos of n w, n the block"
    source = "Vaswani et al. 2017; Dehghani et al. 2019; paper's equations 6, 7"
    data_driven = False
    base = "itself"
    forms = ("--blocks input", "")  # fairseq's Transformer, and the control of the other signals
    continuous = True
    before_start = True
    options = (SEGMENTS,)

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.segments = spec.options.get(SEGMENTS.dest, False)  # DeBERTa's lacks the option
        if self.segments and spec.dim % 4:
            raise ValueError(
                f"`{SEGMENTS.name}` needs a width that is a multiple of 4, but it is {spec.dim}."
            )

    def receives(self, block_index: int) -> bool:
        if self._base_does and self.spec.input_alone:
            return False  # fairseq's base does it
        return super().receives(block_index)

    @property
    def _base_does(self) -> bool:
        spec = self.spec
        rows_are_fairseqs = spec.combine == ADD and not self.segments
        return spec.target == "hidden" and rows_are_fairseqs and spec.base

    def rows(self, places: Places, blocks: Sequence[BlockPositions]) -> Tensor:
        spec = self.spec
        if self.segments:  # rows of the first segment
            inside = places.in_tokens()
            sinusoid = _of_two_numbers(inside, torch.zeros_like(inside), spec.dim)
        else:
            sinusoid = sinusoid_at(places.in_tokens(), spec.dim, spec.padding_idx)
        return self._of_blocks(sinusoid, blocks)

    def token_rows(
        self, at: Positions, blocks: Sequence[BlockPositions], dtype: torch.dtype
    ) -> Tensor | None:
        if at.inside is None:
            return None
        sinusoid = _of_two_numbers(at.inside.double(), at.queries.double(), self.spec.dim)
        return self._of_blocks(sinusoid.flatten(0, 1), blocks).to(dtype)

    def _of_blocks(self, sinusoid: Tensor, blocks: Sequence[BlockPositions]) -> Tensor:
        """Give each block its rows of the ``sinusoid`` [N, C]: [N, S, L, C]."""
        spec, per_block = self.spec, []
        for block in blocks:
            from_base = self._base_does and block.block_index == 0
            rows = torch.zeros_like(sinusoid) if from_base else sinusoid
            if not spec.input_alone:
                rows = rows + block_term(block.block_index + 1, spec.dim).to(rows)
            per_block.append(rows)
        table = torch.stack(per_block, dim=1).unsqueeze(1).to(self.anchor.device)  # [N, 1, L, C]
        return table.expand(-1, len(spec.streams), -1, -1)


def _of_two_numbers(inside: Tensor, segments: Tensor, dim: int) -> Tensor:
    """Return the sinusoids of a token's two numbers, [...] each, concatenated: float32 [..., C]."""
    halves = [interleaved_sinusoid(numbers, dim // 2) for numbers in (inside, segments)]
    return torch.cat(halves, dim=-1)
