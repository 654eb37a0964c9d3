"""Score positions with other projections than those of the content (TUPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import AttentionPart
from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.sinusoidal import sinusoid_at
from fairseq_floater.position_encoders.t5 import T5Positions
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows

# Initial standard deviation of the learned p, as in the authors' code.
STD = 0.02


class TupePart(AttentionPart):
    """Divide a block's content products by sqrt(2 D), because two products are added."""

    def scaling(self, head_dim: int) -> float:
        return (2 * head_dim) ** -0.5


class TupePositions(T5Positions):
    """Score (q_i k_j + (LN(p_i) U_Q) (LN(p_j) U_K)) / sqrt(2 D) + beta_h[bucket(d)].

    Positions are scored with positions and content with content, by separate projections. The stack owns
    U_Q, U_K, p, LayerNorm and beta. So the second summand and beta, which is T5's (``--t5-buckets``,
    ``--t5-max-distance``), form one bias for all blocks, computed once a forward pass.

    p is fairseq's sinusoid, whose rows past the trained length are new to the model. With
    ``--tupe-positions learned``, as in the paper, it is a table of ``--max-source/target-positions`` rows.
    The paper also resets the scores of [CLS], a token without a position; here every token has one.

    Shapes: table [N, 1, sides H + 2 C]; its row n holds beta of distance n, then LN(p_n) U_Q / sqrt(2 D)
    and LN(p_n) U_K. Parameters: 2 C (C + 2) + buckets H a stack; learned p: C more for each row.
    """

    name = "tupe"
    title = "TUPE"
    formula = "(q_i k_j + (p_i U_Q) (p_j U_K)) / sqrt(2 D) + beta_h[bucket(i - j)]"
    source = "Ke et al. 2021"
    part = TupePart
    silent_at_zero = ("weight", "query_projection.weight", "query_projection.bias")
    options = (
        Option(
            "--tupe-positions",
            "sinusoid",
            "vectors of positions: the sinusoid, or learned ones as in the paper, which limit the length",
            choices=("sinusoid", "learned"),
        ),
        *T5Positions.options,
    )

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        return False

    @classmethod
    def takes_stretch(cls, options: dict[str, Any]) -> bool:
        return options["tupe_positions"] == "sinusoid"

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.norm = nn.LayerNorm(spec.dim)
        self.query_projection = nn.Linear(spec.dim, spec.dim)
        self.key_projection = nn.Linear(spec.dim, spec.dim)
        self.positions: nn.Parameter | None = None
        if spec.options["tupe_positions"] == "learned":
            self.positions = nn.Parameter(STD * torch.randn(spec.max_positions, spec.dim))

    @property
    def max_positions(self) -> int:
        return UNLIMITED_POSITIONS if self.positions is None else len(self.positions)

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        spec, norm = self.spec, self.norm
        betas = super().rows(places, blocks)
        if self.positions is None:
            p = sinusoid_at(places.in_tokens(), spec.dim, spec.padding_idx).to(self.anchor.device)
        else:
            p = self.positions[: places.count].float()
        p = F.layer_norm(p, (spec.dim,), norm.weight.float(), norm.bias.float(), norm.eps)
        of_queries, of_keys = (
            F.linear(p, u.weight.float(), u.bias.float())
            for u in (self.query_projection, self.key_projection)
        )
        of_queries = of_queries * (2 * spec.head_dim) ** -0.5
        return torch.cat([betas.flatten(1), of_queries, of_keys], dim=1)[:, None]

    def logit_bias(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        table = self(at.num_rows, blocks, dtype, at.rows_per_token)[:, 0]
        rows = table[:, -2 * self.spec.dim :]
        q, k = (
            gather_rows(projected, places).unflatten(-1, (self.spec.heads, -1)).transpose(1, 2)
            for projected, places in zip(rows.chunk(2, dim=1), (at.queries, at.keys))
        )  # [B or 1, H, T or S, D]
        betas = table[:, : -2 * self.spec.dim].unflatten(1, (-1, self.spec.heads))
        return q @ k.transpose(2, 3) + self.gathered(betas, at)
