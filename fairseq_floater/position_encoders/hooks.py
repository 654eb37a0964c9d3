"""Define the hooks by which positions enter attention, and let signals enter its projections.

Attention calls the same few hooks of every position encoder. A hook changes nothing unless the encoder
overrides it.

Letters: T query length, S key length, B sentences (times beam), H heads, D head width, C = H * D,
N rows of a table of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.transforms import gather_rows

#: The tensors that the stack prepared for one block: flat, as activation checkpointing needs them.
Tables = Sequence[Any]
#: fairseq's state that a decoder's modules keep from one decoding step to the next.
IncrementalState = dict[str, dict[str, Tensor | None]]


class AttentionHooks:
    """Leave attention as it is; subclasses override the hooks that they need.

    ``tables`` are the tensors that the encoder prepared for this block, in the encoder's order.
    """

    #: Whether ``values`` reads the weights. Torch's fused attention forms none, so it cannot be used.
    needs_weights = False
    #: Whether attention calls ``between``, with the keys that are hidden.
    needs_between = False

    def scaling(self, head_dim: int) -> float:
        return head_dim**-0.5

    def project(self, stream: str, projection: nn.Module, x: Tensor) -> Tensor:
        """Project ``x`` [T, B, C] for ``stream`` q, k or v."""
        return projection(x)

    def turn(self, x: Tensor, stream: str, tables: Tables) -> Tensor:
        """Return the changed q, k or v of each head, [B, H, T, D]; k and v are not cached yet."""
        return x

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor | None:
        """Return a bias that is added to the scaled logits: [B or 1, H or 1, T, S].

        Args:
            q: queries before :meth:`turn`, [B, H, T, D], unscaled.
            k: all keys after :meth:`turn`, cached ones first, [B, H, S, D].
            tables: those of this block.
        """
        return None

    def note(self, x: Tensor) -> Tensor | None:
        """Return notes on the tokens ``x`` [S, B, C] that are kept with their keys: [B, any, S].

        Decoding caches and reorders them with the keys.
        """
        return None

    def between(
        self, q: Tensor, k: Tensor, notes: Tensor | None, hidden: Tensor | None, tables: Tables
    ) -> Tensor:
        """Return a bias of the scaled logits, [B, H, T, S], from the tokens between key and query.

        Args:
            q: queries before :meth:`turn`, [B, H, T, D], unscaled.
            k: all keys after :meth:`turn`, cached ones first, [B, H, S, D].
            notes: what :meth:`note` returned for the same tokens, [B, any, S].
            hidden: whether a query must not see a key, [B or 1, 1, T or 1, S]; None: it sees all.
            tables: those of this block.
        """
        raise NotImplementedError

    def values(self, weights: Tensor, tables: Tables) -> Tensor:
        """Return a term that is added to the output, [B, H, T, D]; ``weights`` [B, H, T, S]."""
        raise NotImplementedError

    def one_per_sentence(self, beam_size: int) -> AttentionHooks:
        """Keep one of ``beam_size`` consecutive copies of what belongs to a sentence's keys."""
        return self


NEUTRAL = AttentionHooks()


class PositionBias(NamedTuple):
    """Add to each token's projection row ``positions`` [T, B or 1] of ``table`` [N, C].

    Attributes:
        table: the rows.
        positions: the row of each token, as :func:`gather_rows` takes them.
        holds_bias: whether the rows already contain the projection's bias.
    """

    table: Tensor
    positions: Tensor | None
    holds_bias: bool = False

    def followed_by(self, other: PositionBias, batch: int) -> PositionBias:
        """Append the biases of ``other``'s tokens, for keys that are joined in time."""
        table, positions, start = torch.cat([self.table, other.table]), [], 0
        for bias in (self, other):
            numbers = torch.arange(start, start + len(bias.table), device=table.device)
            start += len(bias.table)
            positions.append(gather_rows(numbers[:, None], bias.positions).squeeze(-1))
        return PositionBias(table, torch.cat([p.expand(-1, batch) for p in positions]))


@dataclass(frozen=True)
class ProjectionBiases(AttentionHooks):
    """Add a signal's rows to projections (target ``qkv``), as the paper adds b_q to W_q x.

    Attributes:
        biases: by stream (q, k, v); a stream without a bias is projected as usual.
    """

    biases: dict[str, PositionBias] = field(default_factory=dict)

    def project(self, stream: str, projection: nn.Module, x: Tensor) -> Tensor:
        bias = self.biases.get(stream)
        return projection(x) if bias is None else _biased(projection, x, bias)

    def one_per_sentence(self, beam_size: int) -> ProjectionBiases:
        of_keys = {
            stream: bias._replace(positions=first_copies(bias.positions, 1, beam_size))
            for stream, bias in self.biases.items()
            if stream != "q"
        }
        return ProjectionBiases({**self.biases, **of_keys})


def own_bias(projection: Any) -> Tensor | None:
    """Return the bias [C] of ``projection`` if a row can take its place in the product, else None."""
    hooked = projection._forward_pre_hooks or projection._forward_hooks
    return None if type(projection) is not nn.Linear or hooked else projection.bias


def _biased(projection: Any, x: Tensor, bias: PositionBias) -> Tensor:
    """Project ``x`` [T, B, C] and add its tokens' rows."""
    linear_bias = own_bias(projection)
    if linear_bias is None:
        return projection(x) + gather_rows(bias.table, bias.positions)
    # The bias is added to the table, so that its gradient is a sum over rows and not over tokens. For whole
    # sentences, the stack has already added the biases of all projections to the table.
    table = bias.table if bias.holds_bias else bias.table + linear_bias
    if len(table) == 1:
        return F.linear(x, projection.weight, table[0])
    rows = gather_rows(table, bias.positions).expand(*x.shape[:2], -1)
    flat = torch.addmm(rows.flatten(0, 1), x.flatten(0, 1), projection.weight.T)
    return flat.view(*x.shape[:2], -1)


def for_each_query(x: Tensor, queries: Tensor) -> Tensor:
    """Repeat ``x`` [B / beam, ...], held once a sentence, for each of ``queries`` [B, ...]."""
    copies = len(queries) // len(x)
    return x if copies == 1 else x.repeat_interleave(copies, 0)


def first_copies(x: Any, batch_dim: int, beam_size: int) -> Any:
    """Keep the first copy of each sentence along ``batch_dim`` of a tensor; None stays None."""
    if x is None or x.dim() <= batch_dim or x.size(batch_dim) == 1:  # the same for all
        return x
    index = torch.arange(0, x.size(batch_dim), beam_size, device=x.device)
    return x.index_select(batch_dim, index)
