"""Subtract from the logits a multiple of the distance (ALiBi)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import BIAS_DIRECTION, DistanceBias, directed
from fairseq_floater.position_encoders.options import Option

LEARNED = "learned"


def slopes(heads: int) -> list[float]:
    """Return m_h of each head: 2^(-8(h+1)/H) if H is a power of 2 (Press, Smith and Lewis 2022).

    For other H, as in their code: the slopes of the power below, then every other slope of the power above.
    """
    lower = 1 << (heads.bit_length() - 1)
    powers = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return powers + [2 ** (-4 * (h + 1) / lower) for h in range(0, 2 * (heads - lower), 2)]


class AlibiPositions(DistanceBias):
    """Add -m_h |d| to the logits; m_h is the slope of head h. Any length.

    Slopes are fixed, or with ``--alibi-slopes learned`` start at these values and are unbounded. Below 0,
    far keys weigh more. With ``--position-base keep`` a warm start sets learned slopes to 0.

    In an encoder |d| does not tell the two directions apart: a reversed sentence would get the reversed
    encoding. ``--bias-direction`` says how to tell them apart.

    Parameters: none; ``--alibi-slopes learned``: H a stack.
    """

    name = "alibi"
    title = "ALiBi"
    formula = "logits - m_h |i - j|"
    source = "Press et al. 2022; both directions: this project"
    data_driven = False
    silent_at_zero = ("slopes",)
    options = (
        BIAS_DIRECTION,
        Option(
            "--alibi-slopes",
            "fixed",
            "slopes of the heads: those of the paper, or learned, starting from those",
            choices=("fixed", LEARNED),
        ),
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.slopes: nn.Parameter | None = None
        if spec.options["alibi_slopes"] == LEARNED:
            self.slopes = nn.Parameter(torch.tensor(slopes(spec.heads)))

    def biases(self, distances: Tensor) -> Tensor:
        if self.slopes is None:
            m = torch.tensor(slopes(self.spec.heads), device=distances.device)
        else:
            m = self.slopes.float()
        return directed(lambda length: -length[:, None] * m, distances, self.spec)
