"""Add the products of content with vectors of distances, for queries and for keys (DeBERTa)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.hooks import Tables, for_each_query
from fairseq_floater.position_encoders.in_attention import AttentionPart, AttentionPositions
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.signal import HIDDEN, HIDDEN_STREAMS
from fairseq_floater.position_encoders.sinusoidal import SinusoidalPositions
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows

# The paper and its code draw P, and project it, with this standard deviation.
STD = 0.02


def signed_log_buckets(distances: Tensor, count: int, furthest: int) -> Tensor:
    """Return the bucket of each signed distance, int64: one each up to count / 2, then ever wider ones.

    From count / 2 on, the bucket grows with the logarithm and reaches count - 1 at ``furthest`` - 1.
    It is not clipped there. Distances up to count / 2 are rounded to whole ones.

    Args:
        distances: signed and real, of any shape.
        count: number of buckets a side, even, at least 4.
        furthest: the distance from which on all are to share a bucket, at least ``count``.
    """
    exact = count // 2
    # Both logarithms are in float32, so their quotient is exactly 1 at the end of the scale.
    whole = torch.log(torch.tensor((furthest - 1) / exact, device=distances.device))
    beyond = torch.log(distances.abs().clamp(min=exact) / exact) / whole
    wide = exact + torch.ceil(beyond * (exact - 1))
    near = distances.abs() <= exact
    return torch.where(near, distances.round(), wide * distances.sign()).long()


class DebertaPart(AttentionPart):
    """Hold one block's W_kr and W_qr, or read its attention's W_k and W_q (``--deberta-share``).

    Tables: K^r and Q^r for the R rows that occur, each [H, D, R]; the row of each pair of tokens for
    queries, [B or 1, 1, T, S], and for keys, [B or 1, 1, S, T].
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self._attention: tuple[Any, ...] = ()
        if spec.options["deberta_share"]:
            return
        self.key_projection = nn.Linear(spec.dim, spec.dim, bias=False)
        self.query_projection = nn.Linear(spec.dim, spec.dim)
        for projection in self.projections:
            nn.init.normal_(projection.weight, std=STD)
        nn.init.zeros_(self.query_projection.bias)

    def set_attention(self, attention: Any) -> None:
        if self.spec.options["deberta_share"]:
            if attention.k_proj.in_features != self.spec.dim:
                raise ValueError(
                    "`--deberta-share` in cross-attention needs stacks of equal width, but they have "
                    f"{attention.k_proj.in_features} and {self.spec.dim}."
                )
            # In a tuple, because a submodule would enter the state dict a second time.
            self._attention = (attention,)

    @property
    def projections(self) -> tuple[Any, Any]:
        """Return the projections of P to keys and to queries."""
        if self._attention:
            return self._attention[0].k_proj, self._attention[0].q_proj
        return self.key_projection, self.query_projection

    def scaling(self, head_dim: int) -> float:
        return (3 * head_dim) ** -0.5

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor:
        key_rows, query_rows, of_queries, of_keys = tables
        k = for_each_query(k, q)
        heads = q.shape[:2]
        by_query = _products(q, key_rows).gather(-1, of_queries.expand(*heads, -1, -1))
        if q.size(2) == len(of_keys) == 1:  # a decoding step: a key meets one row, not all
            met = query_rows[:, :, of_keys.flatten()]
            return by_query + torch.einsum("bhsd,hds->bhs", k, met)[:, :, None]
        by_key = _products(k, query_rows).gather(-1, of_keys.expand(*heads, -1, -1))
        return by_query + by_key.transpose(2, 3)


def _products(x: Tensor, rows: Tensor) -> Tensor:
    """Multiply ``x`` [B, H, T, D] by each head's ``rows`` [H, D, R]: [B, H, T, R]."""
    # One product a head is twice as fast as `@`, which makes one a head and sentence.
    return torch.einsum("bhtd,hdr->bhtr", x, rows)


class DebertaPositions(AttentionPositions):
    """Score (q_i k_j + q_i K^r_delta(i,j) + k_j Q^r_delta(i,j)) / sqrt(3 D), delta = clip(d + k, 0, 2k - 1).

    K^r = P W_kr and Q^r = P W_qr. The stack owns P, a vector for each distance. Each block owns W_kr and
    W_qr (version 1), or with ``--deberta-share`` applies its content's W_k and W_q to LayerNorm(P)
    (version 2). The third product is at delta(i,j) in the authors' code and at delta(j,i) in their paper:
    ``--deberta-p2c``. From ``--deberta-distance`` k on, distances look alike. Rows that no training
    sentence reaches stay as drawn, so for longer test sentences k must lie below the trained length.
    With ``--deberta-buckets`` n, as in version 2, distances up to n / 2 have a row each, further ones share
    rows that widen up to k, and P has 2n rows. A stretched distance (``--position-stretch``) is rounded.

    ``--deberta-absolute`` N adds the sinusoid once, to the input of the N-th last of the encoder's blocks
    that have positions: absolute positions come late, as in DeBERTa's mask decoder.

    A decoder sees d >= 0 only, half of P (with ``paper``: this half of K^r and the other half of Q^r).

    Shapes: table [R, 2, L, C], K^r and Q^r divided by sqrt(3 D); R = 2k or 2n. Parameters: R C a stack and
    (2 C + 1) C a block; shared: (R + 2) C a stack.
    """

    name = "deberta"
    title = "DeBERTa"
    formula = "(q_i k_j + q_i K[i - j] + k_j Q[i - j]) / sqrt(3 D)"
    source = "He et al. 2021"
    part = DebertaPart
    limit_option = "--deberta-distance"
    parameter_efficient = False  # projections in each block
    continuous = True
    before_start = True  # as the sinusoid has
    silent_at_zero = ("vectors",)
    options = (
        Option(
            "--deberta-distance",
            64,
            "distance from which on all look alike",
            int,
            at_least=1,
            why=": with 0 no distance differs from another; that is --position-encoder none.",
        ),
        Option("--deberta-share", False, "version 2: take W_k and W_q of the content", bool),
        Option(
            "--deberta-buckets",
            0,
            "vectors a side, shared by far distances as in version 2; 0: one for each distance",
            int,
        ),
        Option(
            "--deberta-p2c",
            "code",
            "distance in the third product, k_j Q: i - j (code) or j - i (paper)",
            choices=("code", "paper"),
        ),
        Option(
            "--deberta-absolute",
            0,
            "add the sinusoid before this many of the encoder's last blocks",
            int,
            at_least=0,
            why="; with 0 the sinusoid never enters.",
        ),
    )

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        furthest, buckets = options["deberta_distance"], options["deberta_buckets"]
        if buckets and (buckets < 4 or buckets % 2 or buckets > furthest):
            yield (
                "`--deberta-buckets` must be an even number from 4 to --deberta-distance, "
                f"{furthest}, but is {buckets} instead; with 0 each distance has its own vector."
            )

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        return not options["deberta_absolute"]

    @classmethod
    def rounds_distances(cls, options: dict[str, Any]) -> bool:
        return cls.is_relative(options) and not options["deberta_buckets"]

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        options = spec.options
        self.span: int = options["deberta_buckets"] or options["deberta_distance"]
        self.vectors = nn.Parameter(STD * torch.randn(2 * self.span, spec.dim))
        self.norm = nn.LayerNorm(spec.dim) if options["deberta_share"] else None
        self.late = 0 if spec.causal or spec.crosses else options["deberta_absolute"]
        positioned = sum(map(spec.receives, spec.blocks))
        if self.late > positioned:
            raise ValueError(
                "`--deberta-absolute` must be at most the number of the encoder's blocks that have "
                f"positions, {positioned}, but is {self.late} instead."
            )
        self.sinusoid: SinusoidalPositions | None = None
        if self.late:
            # If the input alone is chosen, the block's number adds no term.
            spec = replace(spec, target=HIDDEN, streams=HIDDEN_STREAMS, chosen=(0,), base=False)
            self.sinusoid = SinusoidalPositions(spec)

    def sources(self, blocks: Sequence[DebertaPart]) -> dict[str, nn.Parameter]:
        parameters = super().sources(blocks)
        if self.spec.options["deberta_share"]:
            shared = enumerate(m for block in blocks for m in block.projections)
            parameters |= {f"shared.{i}.{n}": p for i, m in shared for n, p in m.named_parameters()}
        return parameters

    @property
    def table_length(self) -> int:
        return len(self.vectors)

    def rows(self, places: Places, blocks: Sequence[DebertaPart]) -> Tensor:
        vectors = self.vectors.float()
        if self.norm is not None:
            weight, bias = self.norm.weight.float(), self.norm.bias.float()
            vectors = F.layer_norm(vectors, self.norm.normalized_shape, weight, bias, self.norm.eps)
        rows = [
            F.linear(vectors, p.weight.float(), None if p.bias is None else p.bias.float())
            for block in blocks
            for p in block.projections
        ]
        scaled = torch.stack(rows, dim=1) * blocks[0].scaling(self.spec.head_dim)
        return scaled.unflatten(1, (-1, 2)).transpose(1, 2)

    def row_numbers(self, distances: Tensor) -> Tensor:
        """Return delta, the row of each signed real distance, of any shape: int64."""
        options = self.spec.options
        if options["deberta_buckets"]:
            distances = signed_log_buckets(
                distances, options["deberta_buckets"], options["deberta_distance"]
            )
        return (distances.round().long() + self.span).clamp(0, 2 * self.span - 1)

    def prepare(
        self, at: Positions, blocks: Sequence[DebertaPart], dtype: torch.dtype
    ) -> list[Tables]:
        distances = at.distances / at.rows_per_token
        furthest = (at.num_rows - 1) / at.rows_per_token
        nearest = -furthest
        if self.spec.causal:  # later keys are masked out
            distances, nearest = distances.clamp(min=0), 0.0
        table = self(at.num_rows, blocks, dtype).unflatten(3, (self.spec.heads, -1))
        reach = torch.tensor([nearest, furthest])
        key_rows, of_queries = self._in_reach(table[:, 0], distances, reach)
        if self.spec.options["deberta_p2c"] == "paper":
            distances, reach = -distances, -reach.flip(0)
        query_rows, of_keys = self._in_reach(table[:, 1], distances, reach)
        pairs = of_queries, of_keys.transpose(2, 3)
        return [(keys, queries, *pairs) for keys, queries in zip(key_rows, query_rows)]

    def _in_reach(self, table: Tensor, distances: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Cut ``table`` [R, L, H, D] to the rows between the two distances ``reach``.

        Returns:
            The remaining rows, [L, H, D, R'] (few for short sentences), and the number among them of each
            distance [B or 1, T, S]: [B or 1, 1, T, S].
        """
        first, last = self.row_numbers(reach).tolist()
        rows = table[first : last + 1].permute(1, 2, 3, 0)
        # CPU and GPU may round logarithms differently at the edge of a bucket.
        return rows, (self.row_numbers(distances) - first).clamp(0, last - first)[:, None]

    def input_rows(
        self, at: Positions, blocks: Sequence[DebertaPart], dtype: torch.dtype
    ) -> dict[int, Tensor]:
        if self.sinusoid is None:
            return {}
        table = self.sinusoid(at.num_rows, blocks[:1], dtype, at.rows_per_token, at.rows_before)
        return {len(blocks) - self.late: gather_rows(table[:, 0, 0], at.queries.T.contiguous())}
