"""Learn a function of the distance relative to the query's position as a bias of the logits (FIRE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import WithoutTable
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.transforms import Positions

# From the paper: the width of f, the initial c, and a constant that keeps the divisor from 0.
WIDTH, FIRST_C, EPSILON = 32, 0.1, 1e-6
# Larger than any input of f.
_WIDEST = 1e3


class FirePositions(WithoutTable):
    """Add f(psi(d) / psi(max(L, i)))_h to the logits, with psi(z) = ln(1 + |c z|) and one f for all blocks.

    f is Linear(1, 32), ReLU, Linear(32, H). Its input is the distance as a share of the sentence so far, so
    longer sentences bring no new input. Up to L = l * ``--fire-threshold``, the bias depends on d alone; l
    is learned and starts at 1. In an encoder, keys after the query have negative input, with j for i.
    The bias depends on i and j, not on the number of tokens. No table of it is kept.

    Parameters: 66 + 33 H a stack: f, c and l.
    """

    name = "fire"
    title = "FIRE"
    formula = "logits + f(ln(1 + c |i - j|) / ln(1 + c max(L, i)))_h"
    source = "Li et al. 2024; both directions: this project"
    limit_option = "--fire-threshold"
    continuous = True
    silent_at_zero = ("outer.weight", "outer.bias")
    options = (
        Option(
            "--fire-threshold",
            16,
            "position L from which distances count as shares of the sentence so far; training learns a "
            "factor of it (the paper: 512)",
            int,
            at_least=1,
            why="; from it on, distances count as shares of the sentence so far.",
        ),
    )

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        return False

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.inner = nn.Linear(1, WIDTH)
        self.outer = nn.Linear(WIDTH, spec.heads)
        self.c = nn.Parameter(torch.full((1,), FIRST_C))
        self.threshold = nn.Parameter(torch.ones(1))  # l, times the option

    def logit_bias(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        with torch.autocast(at.queries.device.type, enabled=False):
            biases = self.of_shares(self.shares(at))
        return biases.to(dtype).permute(0, 3, 1, 2)

    def shares(self, at: Positions) -> Tensor:
        """Return sign(d) psi(d) / psi(max(L, i, j)): float32 [B or 1, T, S].

        Between -1 and 1, except for tokens that training puts before position 0.
        """
        c = self.c.float()
        limit = (self.threshold.float() * self.spec.options["fire_threshold"]).abs()
        distances = at.distances / at.rows_per_token
        later = torch.maximum(at.queries[:, :, None], at.keys[:, None, :]) - at.rows_before
        later = later / at.rows_per_token
        psi = torch.log1p((c * distances).abs())
        return psi.copysign(distances) / (torch.log1p((c * later.maximum(limit)).abs()) + EPSILON)

    def of_shares(self, shares: Tensor) -> Tensor:
        """Apply f to ``shares`` [...]: float32 [..., H].

        f is linear between the 32 places where a ReLU unit turns on or off. Looking up the linear piece
        takes memory for H numbers a pair of tokens; computing the 32 units would take four times that.
        """
        weight, bias = self.inner.weight.float()[:, 0], self.inner.bias.float()
        with torch.no_grad():
            turns = (-bias / weight).nan_to_num(_WIDEST).clamp(-_WIDEST, _WIDEST).sort().values
            edges = F.pad(F.pad(turns, (1, 0), value=-_WIDEST), (0, 1), value=_WIDEST)
            middles = (edges[1:] + edges[:-1]) / 2
            is_on = (middles[:, None] * weight + bias > 0).float()  # [33, 32]
            pieces = torch.bucketize(shares, turns)
        outer = self.outer.weight.float().T
        values = torch.cat([(is_on * weight) @ outer, (is_on * bias) @ outer], dim=1)
        slopes, starts = F.embedding(pieces, values).chunk(2, dim=-1)
        return slopes * shares[..., None] + starts + self.outer.bias.float()
