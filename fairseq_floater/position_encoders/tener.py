"""Score each distance by the query, and by itself, without a projection or a scale (TENER)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.position_encoders.base import EncoderSpec, check_pairs
from fairseq_floater.position_encoders.hooks import Tables, for_each_query
from fairseq_floater.position_encoders.in_attention import AttentionPositions, Gate
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.rope import turn_pairs
from fairseq_floater.position_encoders.sinusoidal import interleaved_sinusoid, pair_frequencies
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows
from fairseq_floater.position_encoders.xl import QueryBiases, scored

# c of `--tener-scale`: logits are divided by c sqrt(D); None: not divided.
SCALES = {"none": None, "sqrt": 1.0, "2sqrt": 2.0}


class TenerPart(QueryBiases):
    """Hold u and v of one block.

    Angles add up, so x R_(i-j) is (x turned by i) R_(-j), pair by pair. A query is multiplied by S rows,
    one for each key, without any gather by distance.

    Tables: cos and sin of i w, [B or 1, 1, T, D / 2], and R_(-j), [B or 1, S, D]; with
    ``--tener-key-term`` also cos and sin of j w, and R_(-i).
    """

    @property
    def counts_distances(self) -> bool:
        """Return whether ``--position-eval`` changes distances; the tables are then those of XL."""
        law = self.spec.eval_law
        return law is not None and law.changes_distances and not self.training

    def scaling(self, head_dim: int) -> float:
        times = SCALES[self.spec.options["tener_scale"]]
        return 1.0 if times is None else 1 / (times * head_dim**0.5)

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor:
        if self.counts_distances:
            rows, columns, *back = tables
            terms = scored(self.scaled_for_distances(q), rows, columns)
            if back:
                k = for_each_query(k, q) * self.scaling(k.size(-1))
                terms = terms + scored(k, back[0], columns.transpose(2, 3)).transpose(2, 3)
            return terms
        cos, sin, of_keys, *key_term = tables
        terms = products_with_rows(turn_pairs(self.scaled_for_distances(q), cos, sin), of_keys)
        if key_term:
            cos, sin, of_queries = key_term
            k = for_each_query(k, q)
            turned = turn_pairs(k * self.scaling(k.size(-1)), cos, sin)
            terms = terms + products_with_rows(turned, of_queries).transpose(2, 3)
        return terms


def products_with_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Multiply ``x`` [B, H, T, D] by ``rows`` [B or 1, S, D], which all heads share: [B, H, T, S]."""
    heads, length = x.shape[1:3]
    return (x.flatten(1, 2) @ rows.transpose(1, 2)).unflatten(1, (heads, length))


def angles(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of i w from the rows R_i [B or 1, T, D]: [B or 1, 1, T, D / 2] each."""
    sin, cos = rows[:, None].unflatten(-1, (-1, 2)).unbind(-1)
    return cos, sin


def mirrored(rows: Tensor) -> Tensor:
    """Return R_(-i) from the rows R_i, of any shape."""
    sin, cos = rows.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([-sin, cos], dim=-1).flatten(-2)


class TenerPositions(AttentionPositions):
    """Score (q_i + u) k_j + (q_i + v) R_d, d = i - j, as Transformer-XL does, with R_d as wide as a head.

    R_d holds sin(d w_c) and cos(d w_c) in channels 2c and 2c + 1, w_c = 10000^(-2c/D). There is no W_R.
    The paper does not divide the logits by sqrt(D), which makes attention sharper; ``--tener-scale``
    does. ``--tener-key-term`` adds k_j R_(-d), as the authors' code does: key and query see the distance
    with opposite signs. Keys keep their projection W_k, which the paper drops. Past the trained length,
    R_d is new to the model.

    Shapes: table [N, D], R at positions 0 .. N - 1. Parameters: 2 C a block;
    with ``--position-base keep`` a gate a stack.
    """

    name = "tener"
    title = "TENER"
    formula = "(q_i + u) k_j + (q_i + v) R_(i - j), not divided"
    source = "Yan et al. 2019"
    part = TenerPart
    has_frequencies = True
    continuous = True
    silent_at_zero = ("u", "gate.weight")
    options = (
        Option(
            "--tener-scale",
            "none",
            "what logits are divided by: nothing, as in the paper (none), sqrt(D) or 2 sqrt(D)",
            choices=tuple(SCALES),
        ),
        Option(
            "--tener-key-term",
            False,
            "score each distance by the key too, as the authors' code does: + k_j R_(j - i)",
            bool,
        ),
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        check_pairs(self.name, spec.head_dim, "a head", spec)
        self.gate = Gate(spec)

    def _frequencies(self) -> Tensor:
        return pair_frequencies(self.spec.head_dim // 2, device=self.anchor.device)

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        return interleaved_sinusoid(places.in_tokens(self.anchor.device), self.spec.head_dim)

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        table = self(at.num_rows, blocks, dtype, at.rows_per_token)
        options, frequencies = self.spec.options, at.frequencies(self._frequencies)
        if at.law is not None and at.law.changes_distances:
            sides = [table] if self.spec.causal else [table, mirrored(table)]
            rows = self.gate(torch.stack(sides, dim=1).flatten(0, 1))[None, :, None]
            pairs = rows, self.signed_rows(at.distances)[:, None]
            return [(*pairs, mirrored(rows)) if options["tener_key_term"] else pairs] * len(blocks)
        if frequencies is None:
            queries, keys = gather_rows(table, at.queries), gather_rows(table, at.keys)
        else:
            queries, keys = (
                interleaved_sinusoid(rows / at.rows_per_token, self.spec.head_dim, frequencies).to(
                    dtype
                )
                for rows in (at.queries.double(), at.keys.double())
            )
        tables = [*angles(queries), self.gate(mirrored(keys))]
        if options["tener_key_term"]:
            tables += [*angles(keys), self.gate(mirrored(queries))]
        return [tables] * len(blocks)
