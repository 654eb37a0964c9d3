"""Add the sinusoid of the distance to keys and values (NEZHA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.position_encoders.base import EncoderSpec, check_pairs
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import AttentionPositions, Gate
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.shaw import DistanceVectors
from fairseq_floater.position_encoders.sinusoidal import interleaved_sinusoid, pair_frequencies
from fairseq_floater.position_encoders.transforms import Places, Positions


class NezhaPositions(AttentionPositions):
    """Add R_r to keys and to values, as Shaw does, with the sinusoid of r = clip(j - i, +-k) as vectors.

    R_r holds sin(r w_c) and cos(r w_c) in channels 2c and 2c + 1 of a head, w_c = 10000^(-2c/D). All
    heads and blocks share it. Beyond k = ``--nezha-clip`` distances look alike. With k = 0 none is clipped,
    and past the trained length vectors are new to the model. The authors' code takes the sinusoid
    of r + k, which is R turned by a fixed angle in each pair of channels.

    Shapes: table [N, sides, D] of distances 0 .. N - 1, for keys before the query and, in an
    encoder, after it. Parameters: none; with ``--position-base keep`` a gate a stack.
    """

    name = "nezha"
    title = "NEZHA"
    formula = "k_j + R[clip(j - i)]; v_j + R[clip(j - i)]; R a sinusoid"
    source = "Wei et al. 2019"
    part = DistanceVectors
    limit_option = "--nezha-clip"
    acts_on = "logits, values"
    data_driven = False
    has_frequencies = True
    continuous = True
    silent_at_zero = ("gate.weight",)
    options = (
        Option(
            "--nezha-clip",
            64,
            "distance k from which on all share a vector; 0: no limit",
            int,
            at_least=0,
            why="; with 0 no distance is clipped.",
        ),
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        check_pairs(self.name, spec.head_dim, "a head", spec)
        self.gate = Gate(spec)

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        from_query = -self.signed_distances(places)  # j - i
        return interleaved_sinusoid(from_query, self.spec.head_dim)

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        furthest = at.num_rows - 1
        if self.spec.options["nezha_clip"]:
            furthest = min(furthest, self.spec.options["nezha_clip"] * at.rows_per_token)
        rows = self.signed_rows(at.distances.clamp(-furthest, furthest))[:, None]
        pairs, device = self.spec.head_dim // 2, self.anchor.device
        frequencies = at.frequencies(lambda: pair_frequencies(pairs, device=device))
        if frequencies is None:
            table = self(furthest + 1, blocks, dtype, at.rows_per_token)
        else:  # one table a sentence; the tables are joined
            distances = -self.signed_distances(Places(furthest + 1, at.rows_per_token)).flatten()
            table = interleaved_sinusoid(distances, self.spec.head_dim, frequencies).to(dtype)
            first = torch.arange(len(table), device=rows.device) * table.size(1)
            rows = rows + first[:, None, None, None]
        table = self.gate(table).flatten(0, 1)
        return [(rows, table, table)] * len(blocks)
