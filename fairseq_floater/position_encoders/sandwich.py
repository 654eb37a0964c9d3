"""Add the product of two tokens' sinusoids, scaled for each head, to the logits (Sandwich)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import (
    BIAS_DIRECTION,
    HIDING_BIAS,
    DistanceBias,
    Gate,
    directed,
)
from fairseq_floater.position_encoders.sinusoidal import pair_frequencies
from fairseq_floater.position_encoders.transforms import Positions

# Pairs of sine and cosine. The paper's sinusoid has a width of 128 for any width of the model.
PAIRS = 64


class SandwichPositions(DistanceBias):
    """Add H / (8 (h + 1)) sum_c cos(d w_c) to the logits, w_c = 10000^(-c/64), c = 0 .. 63.

    The sum is the product of two sinusoids 128 wide. It falls roughly with the logarithm of the distance,
    so far keys keep some weight, and more in later heads. Any length; nothing is learned. In an encoder
    the sum does not tell the two directions apart; ``--bias-direction`` says how to.

    Parameters: none; with ``--position-base keep`` a gate a stack.
    """

    name = "sandwich"
    title = "Sandwich"
    formula = "logits + H / (8 (h + 1)) sum_c cos((i - j) w_c)"
    source = "Chi et al. 2023; both directions: this project"
    data_driven = False
    silent_at_zero = ("gate.weight",)
    options = (BIAS_DIRECTION,)

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.gate = Gate(spec)

    def biases(self, distances: Tensor) -> Tensor:
        heads = torch.arange(1, self.spec.heads + 1, device=distances.device)
        frequencies = pair_frequencies(PAIRS, device=distances.device)

        def products(length: Tensor) -> Tensor:
            summed = (length.double()[:, None] * frequencies).cos().sum(1, keepdim=True)
            return (summed * self.spec.heads / (8 * heads)).float()

        return directed(products, distances, self.spec)

    def logit_bias(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        table = self(at.num_rows, blocks, dtype, at.rows_per_token)
        # Keys that a head must not see stay hidden at any value of the gate. (The comparison is with half
        # of the constant, because bfloat16 rounds it up.)
        gated = self.gate(table).masked_fill(table < HIDING_BIAS / 2, HIDING_BIAS)
        return self.gathered(gated, at)
