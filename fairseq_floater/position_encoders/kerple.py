"""Subtract a learned kernel of the distance from the logits (KERPLE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import HIDING_BIAS, DistanceBias
from fairseq_floater.position_encoders.options import Option

# Kernels are defined if both parameters are at least SMALLEST, and a power's exponent is at most 2.
SMALLEST, LARGEST_EXPONENT = 0.01, 2.0


class ClampKeepingGradient(torch.autograd.Function):
    """Clamp to [low, high]; a number outside still gets a gradient that leads it back.

    The authors' code resets the parameters before each use, which evaluation should not do. With the
    ordinary gradient of clamp, a number that is once outside would stay there.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limits = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        low, high = ctx.limits
        outwards = (x < low) & (gradient > 0) | (x > high) & (gradient < 0)
        return gradient.masked_fill(outwards, 0.0), None, None


class KerplePositions(DistanceBias):
    """Add -r1 ln(1 + r2 |d|), or with ``--kerple-kernel power`` -r2 |d|^r1, to the logits.

    Each head has its own r1 and r2, in an encoder for each side of the query; blocks share them. Both are
    at least 0.01, the exponent at most 2. Any length; ln grows so slowly that far keys keep some weight.

    Parameters: r, [2, sides, H], r1 and r2 of each side and head: 2 H in a decoder, 4 H in an encoder.
    """

    name = "kerple"
    title = "KERPLE"
    formula = "logits - r1_h ln(1 + r2_h |i - j|)"
    source = "Chi et al. 2022; both directions: this project"
    options = (
        Option(
            "--kerple-kernel",
            "log",
            "how logits fall with the distance: r1 ln(1 + r2 |d|) (log) or r2 |d|^r1 (power)",
            choices=("log", "power"),
        ),
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        drawn = torch.rand(2, spec.sides, spec.heads)
        drawn[0] *= 2  # r1
        self.r = nn.Parameter(drawn)

    def biases(self, distances: Tensor) -> Tensor:
        is_power = self.spec.options["kerple_kernel"] == "power"
        highest = LARGEST_EXPONENT if is_power else float("inf")
        after = (distances < 0).long()
        length = distances.abs()[:, None]
        r1 = ClampKeepingGradient.apply(self.r[0].float(), SMALLEST, highest)[after]  # [N, H]
        r2 = ClampKeepingGradient.apply(self.r[1].float(), SMALLEST, float("inf"))[after]
        if is_power:
            # Below this bias no key has any weight, and float16 overflows.
            return (-r2 * length**r1).clamp(min=HIDING_BIAS)
        return -r1 * torch.log1p(r2 * length)
