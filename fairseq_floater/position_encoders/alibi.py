"""Subtract from the logits a multiple of the distance (ALiBi)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_floater.position_encoders.in_attention import BIAS_DIRECTION, DistanceBias, directed


def slopes(heads: int) -> list[float]:
    """Return m_h: powers of 2 from 2^(-8/H) on; between two powers of 2 every other slope of the upper.

    Press, Smith and Lewis 2022, with their rule for other numbers of heads.
    """
    lower = 1 << (heads.bit_length() - 1)
    found = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return found + [2 ** (-4 * (h + 1) / lower) for h in range(0, 2 * (heads - lower), 2)]


class AlibiPositions(DistanceBias):
    """Add -m_h |d| to the logits; head h has its slope m_h. Nothing is learned; any length.

    In an encoder |d| alone is blind to direction: a reversed sentence would get the reversed
    encoding. ``--bias-direction`` says what breaks the tie.
    """

    name = "alibi"
    title = "ALiBi"
    formula = "logits - m_h |i - j|"
    source = "Press et al. 2022; both directions: this project"
    data_driven = False
    parameter_efficient = True
    options = (BIAS_DIRECTION,)

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        return f"direction {options['bias_direction']}"

    def biases(self, distances: Tensor) -> Tensor:
        m = torch.tensor(slopes(self.spec.heads), device=distances.device)
        return directed(lambda length: -length[:, None] * m, distances, self.spec)
