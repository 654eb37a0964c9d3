"""Add a learned vector for each distance to keys and values (Shaw)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import AttentionPart, AttentionPositions
from fairseq_floater.position_encoders.options import ON_OFF, Option
from fairseq_floater.position_encoders.transforms import Places, Positions


class DistanceVectors(AttentionPart):
    """Add a vector of the distance to key j as query i sees it, and another vector to its value.

    A query's products with all R vectors are formed first, and each key picks one. The weights of keys
    at the same distance are summed before they multiply its vector. So no [T, S, D] tensor is formed.

    Tables: the row of each pair of tokens, [B or 1, 1, T, S]; vectors of keys and, if
    ``needs_weights``, of values, each [R, D], or [R, H, D] if each head has its own.
    """

    needs_weights = True

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor:
        rows, of_keys = tables[:2]
        products = (q * self.scaling(q.size(-1))) @ of_keys.movedim(0, -1)  # [B, H, T, R]
        return products.gather(-1, rows.expand(*q.shape[:2], -1, -1))

    def values(self, weights: Tensor, tables: Tables) -> Tensor:
        rows, _, of_values = tables
        # A GPU adds weights one by one: in bfloat16, 512 weights of 1/512 would sum to a half.
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        sums = exact.new_zeros(*exact.shape[:-1], len(of_values))
        sums = sums.scatter_add(-1, rows.expand_as(exact), exact)  # [B, H, T, R]
        return sums.to(weights.dtype) @ of_values.movedim(0, -2)


class ShawPart(DistanceVectors):
    """Hold the vectors of one block, [R, D] or, with ``--shaw-per-head``, [R, H, D]."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.needs_weights = spec.options["shaw_values"] == "on"
        self.key_vectors = self._vectors()
        self.value_vectors = self._vectors() if self.needs_weights else None

    def _vectors(self) -> nn.Parameter:
        """Draw the vectors from Xavier's uniform distribution, as for a matrix [R, D] of each head."""
        spec = self.spec
        heads = (spec.heads,) if spec.options["shaw_per_head"] else ()
        bound = math.sqrt(6 / (num_rows(spec) + spec.head_dim))
        drawn = torch.empty(num_rows(spec), *heads, spec.head_dim).uniform_(-bound, bound)
        return nn.Parameter(drawn)

    def stacked(self) -> Tensor:
        """Return the vectors of keys and, if they exist, of values: [R, 1 or 2, (H,) D]."""
        both = (self.key_vectors, self.value_vectors)
        return torch.stack([vectors for vectors in both if vectors is not None], dim=1)


def num_rows(spec: EncoderSpec) -> int:
    """Return R, one vector for each distance up to k; an encoder has them on both sides."""
    clip = spec.options["shaw_clip"]
    return spec.sides * clip + 1


class ShawPositions(AttentionPositions):
    """Score q_i (k_j + A^K_r) / sqrt(D), and read sum_j a_ij (v_j + A^V_r), r = clip(j - i, +-k) + k.

    Row r = k belongs to the token itself, lower rows to tokens before it. Every block has its own
    A^K and A^V, shared by its heads unless ``--shaw-per-head`` is given. ``--shaw-values off`` leaves out
    A^V, which mattered little in the paper; attention then need not form its weights. Beyond k all
    distances look alike. All rows are trained if sentences are longer than k. A stretched distance
    (``--position-stretch``) is rounded.

    Shapes: table [R, L, 1 or 2, (H,) D]; R = 2k + 1, in a decoder k + 1.
    Parameters: 2 R D a block; per head: 2 R C.
    """

    name = "shaw"
    title = "Shaw"
    formula = "k_j + A^K[clip(j - i)]; v_j + A^V[clip(j - i)]"
    source = "Shaw et al. 2018"
    part = ShawPart
    limit_option = "--shaw-clip"
    acts_on = "logits, values"
    continuous = True
    silent_at_zero = ("key_vectors", "value_vectors")
    options = (
        Option(
            "--shaw-clip",
            16,
            "distance k from which on all share a vector",
            int,
            at_least=1,
            why=": with 0 no distance differs from another; that is --position-encoder none.",
        ),
        Option(
            "--shaw-values",
            "on",
            "vectors for values too, not for keys alone (off: faster)",
            choices=ON_OFF,
        ),
        Option("--shaw-per-head", False, "separate vectors for each head", bool),
    )

    @classmethod
    def rounds_distances(cls, options: dict[str, Any]) -> bool:
        return True

    @property
    def table_length(self) -> int:
        return num_rows(self.spec)

    def rows(self, places: Places, blocks: Sequence[ShawPart]) -> Tensor:
        return torch.stack([block.stacked() for block in blocks], dim=1).float()

    def prepare(
        self, at: Positions, blocks: Sequence[ShawPart], dtype: torch.dtype
    ) -> list[Tables]:
        clip = self.spec.options["shaw_clip"]
        offsets = -(at.distances / at.rows_per_token).round().long()  # j - i
        # A decoder does not see later keys, so any row will do for them.
        rows = (offsets.clamp(-clip, 0 if self.spec.causal else clip) + clip)[:, None]
        table = self(at.num_rows, blocks, dtype)
        return [(rows, *of_block.unbind(1)) for of_block in table.unbind(1)]
