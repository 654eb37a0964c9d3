"""Say where positions may enter attention, and let signals enter its projections.

Attention asks the same few questions of every kind of position encoder; each answer is neutral
unless a kind overrides it.

Letters: T query length, S key length, B sentences (times beam), H heads, D head width, C = H * D,
N rows of a table of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.transforms import gather_rows

#: What the stack prepared for one block: flat tensors, as activation checkpointing needs them.
Tables = Sequence[Any]
#: What a decoder's modules keep from one step of decoding to the next, as fairseq has it.
IncrementalState = dict[str, dict[str, Tensor | None]]


class AttentionHooks:
    """Leave attention as it is; subclasses override what they need.

    ``tables`` are what the encoder prepared for this block, in the order it chose.
    """

    #: ``values`` reads the weights, so that torch's fused attention, which forms none, cannot be used.
    needs_weights = False
    #: ``between`` is asked, and told which keys are hidden.
    needs_between = False

    def scaling(self, head_dim: int) -> float:
        return float(head_dim**-0.5)

    def project(self, stream: str, projection: nn.Module, x: Tensor) -> Tensor:
        """Project ``x`` [T, B, C] for ``stream`` q, k or v."""
        projected: Tensor = projection(x)
        return projected

    def turn(self, x: Tensor, stream: str, tables: Tables) -> Tensor:
        """Change q, k or v of each head, [B, H, T, D]; keys and values before they are cached."""
        return x

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor | None:
        """Return what is added to the scaled logits: [B or 1, H or 1, T, S].

        Args:
            q: queries before :meth:`turn`, [B, H, T, D], unscaled.
            k: all keys, cached ones first and turned, [B, H, S, D].
            tables: of this block.
        """
        return None

    def note(self, x: Tensor) -> Tensor | None:
        """Return what is kept of each token ``x`` [S, B, C] beside its key: [B, any, S].

        While decoding it is cached, and reordered with the keys.
        """
        return None

    def between(
        self, q: Tensor, k: Tensor, notes: Tensor | None, hidden: Tensor | None, tables: Tables
    ) -> Tensor:
        """Return what is added to the scaled logits, [B, H, T, S], by the tokens between key and query.

        Args:
            q: queries before :meth:`turn`, [B, H, T, D], unscaled.
            k: all keys, cached ones first and turned, [B, H, S, D].
            notes: on the same tokens, [B, any, S].
            hidden: whether a query must not see a key, [B or 1, 1, T or 1, S]; None where it sees all.
            tables: of this block.
        """
        raise NotImplementedError

    def values(self, weights: Tensor, tables: Tables) -> Tensor:
        """Return what is added to the output, [B, H, T, D]; ``weights`` [B, H, T, S]."""
        raise NotImplementedError

    def one_per_sentence(self, beam_size: int) -> AttentionHooks:
        """Keep what belongs to the keys once a sentence, of ``beam_size`` copies in a row."""
        return self


NEUTRAL = AttentionHooks()


class PositionBias(NamedTuple):
    """Add to each token's projection row ``positions`` [T, B or 1] of ``table`` [N, C].

    Attributes:
        table: the rows.
        positions: of each token; [0]: token i of every sentence has row i.
        holds_bias: whether the rows hold the projection's bias already.
    """

    table: Tensor
    positions: Tensor
    holds_bias: bool = False

    def one_per_sentence(self, beam_size: int) -> PositionBias:
        """Keep the first of each sentence's copies, B of B * beam_size."""
        return self._replace(positions=first_copies(self.positions, 1, beam_size))

    def followed_by(self, other: PositionBias, batch: int) -> PositionBias:
        """Append the biases of ``other``'s tokens, for keys that are joined in time."""
        places = [
            bias.positions
            if bias.positions.numel()
            else torch.arange(len(bias.table), device=bias.table.device)[:, None]
            for bias in (self, other)
        ]
        positions = [places[0], places[1] + len(self.table)]
        return PositionBias(
            torch.cat([self.table, other.table]),
            torch.cat([p.expand(-1, batch) for p in positions]),
        )


@dataclass(frozen=True)
class ProjectionBiases(AttentionHooks):
    """Add a signal's rows to projections (target ``qkv``): b_q stands beside W_q x in the paper.

    Attributes:
        biases: by stream, q, k and v; a stream without one is projected as usual.
    """

    biases: dict[str, PositionBias] = field(default_factory=dict)

    def project(self, stream: str, projection: nn.Module, x: Tensor) -> Tensor:
        bias = self.biases.get(stream)
        return (
            super().project(stream, projection, x) if bias is None else _biased(projection, x, bias)
        )

    def one_per_sentence(self, beam_size: int) -> ProjectionBiases:
        of_keys = {s: self.biases[s].one_per_sentence(beam_size) for s in "kv" if s in self.biases}
        return ProjectionBiases({**self.biases, **of_keys})


def own_bias(projection: Any) -> Tensor | None:
    """Return the bias of ``projection`` [C] where a row can take its place in the product, else None."""
    hooked = projection._forward_pre_hooks or projection._forward_hooks
    return None if type(projection) is not nn.Linear or hooked else projection.bias


def _biased(projection: Any, x: Tensor, bias: PositionBias) -> Tensor:
    """Project ``x`` [T, B, C] and add its tokens' rows."""
    linear_bias = own_bias(projection)
    if linear_bias is None:
        projected: Tensor = projection(x) + gather_rows(bias.table, bias.positions)
        return projected
    # That bias is added to whichever is fewer: to the table, so that its gradient is a sum over rows and
    # not over tokens, or in a decoding step to the rows it reads. Where whole sentences pass, the stack
    # has added those of all projections to the table at once.
    if bias.holds_bias:
        rows = _read(bias.table, bias.positions)
    elif bias.positions.numel() < len(bias.table):
        rows = _read(bias.table, bias.positions) + linear_bias
    else:
        rows = _read(bias.table + linear_bias, bias.positions)
    if rows.numel() > projection.weight.size(0):
        rows = rows.expand(*x.shape[:2], -1)
    flat = torch.addmm(rows.flatten(0, 1), x.flatten(0, 1), projection.weight.T)
    return flat.view(*x.shape[:2], -1)


def _read(table: Tensor, positions: Tensor) -> Tensor:
    """Gather rows as :func:`gather_rows`; a step of decoding without padding has one row in all."""
    return table[None] if table.size(0) == 1 else gather_rows(table, positions)


def for_each_query(x: Tensor, queries: Tensor) -> Tensor:
    """Repeat what is held once a sentence, ``x`` [B / beam, ...], for each of ``queries`` [B, ...]."""
    copies = len(queries) // len(x)
    return x if copies == 1 else x.repeat_interleave(copies, 0)


def first_copies(x: Any, batch_dim: int, beam_size: int) -> Any:
    """Keep the first of each sentence's copies along ``batch_dim`` of a tensor; None stays None."""
    if x is None or x.dim() <= batch_dim or x.size(batch_dim) == 1:  # the same for all
        return x
    index = torch.arange(0, x.size(batch_dim), beam_size, device=x.device)
    return x.index_select(batch_dim, index)
