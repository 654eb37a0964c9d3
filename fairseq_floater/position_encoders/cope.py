"""Count positions by what a query sees in the tokens between it and a key (CoPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import AttentionPart, WithoutTable
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.transforms import Positions


class Interpolated(torch.autograd.Function):
    """Interpolate between neighbouring columns; places past the last of n columns read the last one.

    The backward pass finds the columns again, because indices take four times the memory of the places.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor, places: Tensor, first: Tensor | None, n: int) -> Tensor:
        """Read ``columns`` [..., sides n] at ``first`` (None: 0) + ``places``, both [..., S]."""
        ctx.save_for_backward(columns, places, first)
        ctx.n = n
        left, share = Interpolated.split(places, first, n)
        right = _following(columns, n).gather(-1, left)
        return torch.lerp(columns.gather(-1, left), right, share.to(columns.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        columns, places, first = ctx.saved_tensors
        left, share = Interpolated.split(places, first, ctx.n)
        to_right = gradient * share.to(columns.dtype)
        of_columns = torch.zeros_like(columns).scatter_add_(-1, left, gradient - to_right)
        of_following = torch.zeros_like(columns).scatter_add_(-1, left, to_right)
        direct, following = (x.unflatten(-1, (-1, ctx.n)) for x in (of_columns, of_following))
        direct[..., 1:] += following[..., :-1]
        direct[..., -1] += following[..., -1]
        of_places = gradient * (_following(columns, ctx.n) - columns).gather(-1, left)
        return of_columns, of_places.to(places.dtype), None, None

    @staticmethod
    def split(places: Tensor, first: Tensor | None, n: int) -> tuple[Tensor, Tensor]:
        """Return the column to the left of each place, and the share of the column to the right."""
        share = places.clamp(max=n - 1)
        floor = share.floor()
        left = floor.long().clamp_(0, n - 1)  # NaN is not an index; the share passes it on
        return left if first is None else left.add_(first), share.sub_(floor)


def _following(columns: Tensor, n: int) -> Tensor:
    """Return the column to the right of each column [..., sides n], for the last of a side itself."""
    sides = columns.unflatten(-1, (-1, n))
    return torch.cat([sides[..., 1:], sides[..., -1:]], -1).flatten(-2)


class CopePart(AttentionPart):
    """Hold one block's vectors, [n, D]; in an encoder [2 n, D], with those of keys after the query last.

    Tables: the signed distance of each pair of tokens, [B or 1, 1, T, S]; only the sign is used.
    """

    needs_between = True

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.count = spec.options["cope_positions"]
        self.vectors = nn.Parameter(torch.zeros(spec.sides * self.count, spec.head_dim))

    def between(
        self, q: Tensor, k: Tensor, notes: Tensor | None, hidden: Tensor | None, tables: Tables
    ) -> Tensor:
        (distances,) = tables
        counted = self._counted(q, k, hidden, distances)
        products = q @ self.vectors.to(q.dtype).T  # [B, H, T, sides n]
        first = None if self.spec.causal else self.count * (distances < 0).long()
        return Interpolated.apply(products, counted, first, self.count)

    def _counted(self, q: Tensor, k: Tensor, hidden: Tensor | None, distances: Tensor) -> Tensor:
        """Return the sum of the gates from each key to the query, inclusive: float32 [B, H, T, S]."""
        gates = torch.sigmoid((q * self.scaling(q.size(-1))) @ k.transpose(2, 3)).float()
        if hidden is not None:
            gates = gates.masked_fill(hidden, 0.0)
        ahead = gates.masked_fill(distances < 0, 0.0)
        counted = ahead.flip(-1).cumsum(-1).flip(-1)
        if self.spec.causal:
            return counted
        after = gates.masked_fill(distances > 0, 0.0).cumsum(-1)
        return torch.where(distances < 0, after, counted)


class CopePositions(WithoutTable):
    """Add q_i e[pi_ij] to the logits s_ij; pi_ij is the sum of sigmoid(s_il) over l = j .. i.

    A query counts only the tokens that matter to it, such as words of one kind or ends of sentences. e[pi]
    is interpolated between the vectors of the two whole numbers next to pi. With n = ``--cope-positions``,
    all counts from n - 1 on look alike. In an encoder, keys after the query are counted to the right,
    l = i .. j, with other vectors. Logits are formed twice, once to count; attention stays fused.

    Parameters: n D a block, shared by its heads; in an encoder 2 n D.
    """

    name = "cope"
    title = "CoPE"
    formula = "logits + q_i e[sum of sigmoid(logits) from j to i]"
    source = "Golovneva et al. 2024; both directions: this project"
    part = CopePart
    limit_option = "--cope-positions"
    silent_at_zero = ("vectors",)
    options = (
        Option(
            "--cope-positions",
            64,
            "vectors n; all counts from n - 1 on share the last",
            int,
            at_least=2,
            why=": with one vector no count differs from another.",
        ),
    )

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        return [(at.distances[:, None],)] * len(blocks)
