"""Subtract from the logits a multiple of the distance (ALiBi)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import BIAS_DIRECTION, DistanceBias, directed
from fairseq_floater.position_encoders.options import Option

LEARNED = "learned"


def slopes(heads: int) -> list[float]:
    """Return m_h: powers of 2 from 2^(-8/H) on; between two powers of 2 every other slope of the upper.

    Press, Smith and Lewis 2022, with their rule for other numbers of heads.
    """
    lower = 1 << (heads.bit_length() - 1)
    powers = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return powers + [2 ** (-4 * (h + 1) / lower) for h in range(0, 2 * (heads - lower), 2)]


class AlibiPositions(DistanceBias):
    """Add -m_h |d| to the logits; head h has its slope m_h. Any length.

    Slopes are fixed, or with ``--alibi-slopes learned`` start so and may become anything, below 0 too,
    where far keys weigh more; with ``--position-base keep`` a warm start then sets them to 0.

    In an encoder |d| alone is blind to direction: a reversed sentence would get the reversed
    encoding. ``--bias-direction`` says what breaks the tie.

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
            str,
            ("fixed", LEARNED),
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
