"""Measure the effect of positions inside attention at each distance, without any data.

Each block's part of an encoder is called through the same hooks as in attention, with artificial
queries and keys. So every encoder is measured alike.

Letters: T the longest training sentence in tokens, end symbol included, N tokens in the figure, M
signed distances d = i - j between them, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import HIDING_BIAS, AttentionPositions
from fairseq_floater.position_encoders.transforms import Positions
from fairseq_floater.results.position_rows import DEFAULT_LENGTH, BlockStream
from fairseq_floater.transformer.stack_positions import owned_parts

#: A description of each term, by its name in `--streams`.
TERMS = {
    "bias": "added to the logits, whatever the tokens",
    "turn": "cosine of a turned vector to itself at distance d",
    "content": "added to the logits, deviation over the tokens",
    "values": "size of what is added to the values",
}
_NOTHING = 1e-6  # smaller terms are rounding errors
_MOST_KEYS = 64  # keys whose values are computed at once
# A bias below this hides the key; real biases are far above it.
_HIDDEN_BELOW = HIDING_BIAS / 10


@dataclass
class Term(BlockStream):
    """One effect of positions in one block; ``stream`` is its name, one of :data:`TERMS`.

    Attributes:
        distances: [M], ascending.
        values: [H, M], of each head ([1, M] for a turn); NaN if the head does not see the key.
        image: shown beside the curves. For a bias, attention if all contents are equal [H, M]; for a
            turn, the angle of each pair of channels in degrees [D / 2, M]; else the cosine of the
            vectors of two distances, the mean over heads [M, M].
    """

    distances: Tensor
    values: Tensor
    image: Tensor

    @property
    def has_past(self) -> bool:
        return self.trained is not None and self.trained <= int(self.distances.max())

    def measure(self) -> dict[str, Any]:
        """Return the means over heads at some distances before the query; None past the last distance.

        ``alike_from`` is the distance from which all heads are constant; None if there is none.
        """
        unit = self.trained or int(self.distances.max()) + 1
        ahead = self.values[:, self.distances >= 0]
        distances = {"1": 1, "T/2": -(-unit // 2), "T": unit, "2T": 2 * unit, "3T": 3 * unit - 1}
        means = {
            name: float(ahead[:, d].nanmean()) if d < ahead.size(1) else None
            for name, d in distances.items()
        }
        steps = ahead.nan_to_num(0.0).diff(dim=1).abs().amax(dim=0)
        if self.stream in ("content", "values"):  # vectors of equal size may still differ
            steps = steps + 1 - self.image.diagonal(1)[-len(steps) :]
        moves = steps > _NOTHING
        last = int(moves.nonzero().max()) + 1 if bool(moves.any()) else 0
        return {
            **self.location(),
            "furthest": ahead.size(1) - 1,
            "means": means,
            "alike_from": last if last < ahead.size(1) - 1 else None,
        }


@torch.no_grad()
def read_terms(
    stack: Any, name: str, length: int | None, trained: dict[str, int | None]
) -> list[Term]:
    """Return every term inside the attention of a stack, block by block; arguments as for `read_tables`."""
    terms = []
    for attribute, encoder in stack.named_children():
        if not isinstance(encoder, AttentionPositions):
            continue
        known = trained[encoder.spec.side]
        most = encoder.max_positions
        if not encoder.spec.causal:  # the keys lie on both sides of the query
            most = (most + 1) // 2
        count = min(length or 3 * (known or 0) or DEFAULT_LENGTH, most)
        parts = owned_parts(stack, attribute)
        readers = _Readers(encoder, parts, count)
        for index, part in enumerate(parts):
            where = "cross-attention" if encoder.spec.crosses else name
            location = (where, part.block_index + 1)
            for stream, *term in readers.terms(index):
                terms.append(Term(*location, stream, known, readers.distances, *term))
    return terms


class _Readers:
    """Compute the terms of all parts of one stack, for one query with keys at all M distances."""

    def __init__(self, encoder: AttentionPositions, parts: list[Any], count: int):
        self.heads, self.width = encoder.spec.heads, encoder.spec.head_dim
        self.parts = parts
        keys = torch.arange(count if encoder.spec.causal else 2 * count - 1)[None]
        query = torch.tensor([[count - 1]])
        self.distances = (query - keys)[0].flip(0)
        at = Positions(query, keys, keys.size(1))
        shared = encoder.logit_bias(at, parts, torch.float32)
        self.shared = 0.0 if shared is None else shared[0, :, 0].flip(-1)  # [H, M]
        self.of_query = encoder.prepare(at, parts, torch.float32)
        # For turns: queries at places 0 to N - 1, each at its distance from the first token.
        every = torch.arange(count)[None]
        self.of_all = encoder.prepare(Positions(every, every, count), parts, torch.float32)

    def terms(self, index: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield stream, values and image of each term of a part."""
        part, tables = self.parts[index], self.of_query[index]
        still = self._bias(part, tables)
        bias = self.shared + still[0]
        if float(bias.abs().max()) > _NOTHING:
            seen = bias.masked_fill(bias < _HIDDEN_BELOW, float("nan"))
            yield "bias", seen, torch.softmax(bias, dim=-1)
        angles = self._angles(part, self.of_all[index])
        if float(angles.max()) > 0.1:
            mirrored = angles[:, self.distances.abs()]  # [D / 2, M]
            yield "turn", torch.deg2rad(mirrored).cos().mean(dim=0, keepdim=True), mirrored
        of_tokens = [
            self._bias(part, tables, of_query=True),
            self._bias(part, tables, of_keys=True),
        ]
        vectors = torch.cat(of_tokens) - still
        if float(vectors.abs().max()) > _NOTHING:
            yield "content", vectors.norm(dim=0), _similarity(vectors)
        if part.needs_weights:
            vectors = self._values(part, tables)
            yield "values", vectors.norm(dim=0), _similarity(vectors)

    def _bias(
        self, part: Any, tables: Tables, *, of_query: bool = False, of_keys: bool = False
    ) -> Tensor:
        """Return the part's bias [probes, H, M]; queries or keys are each unit vector in turn, else zero.

        The bias is linear in queries and in keys. So the sum of its squares over all D unit vectors is its
        variance over random tokens (independent channels, variance 1). The tokens between a key and the
        query are zero vectors, so only parameters act there.
        """
        probes = self.width if of_query or of_keys else 1
        unit = torch.eye(self.width)[:, None, None]
        q = torch.zeros(probes, self.heads, 1, self.width) + (unit if of_query else 0.0)
        k = torch.zeros(probes, self.heads, len(self.distances), self.width)
        k = k + (unit if of_keys else 0.0)
        bias = part.bias(q, k, tables)
        if part.needs_between:
            notes = part.note(torch.zeros(k.size(2), probes, self.heads * self.width))
            bias = part.between(q, k, notes, None, tables)
        if bias is None:
            return torch.zeros(probes, self.heads, len(self.distances))
        return bias[:, :, 0].expand(probes, self.heads, -1).flip(-1)

    def _angles(self, part: Any, tables: Tables) -> Tensor:
        """Return the angle in degrees between each even channel at i and at i = 0: [D / 2, N]."""
        count = (len(self.distances) + 1) // 2 if self.distances[0] < 0 else len(self.distances)
        probes = torch.eye(self.width)[::2, None, None].expand(-1, self.heads, count, -1)
        turned = part.turn(probes, "q", tables)[:, 0]  # [D / 2, N, D]
        cosines = F.cosine_similarity(turned, turned[:, :1], dim=-1)
        return torch.rad2deg(cosines.clamp(-1, 1).acos())

    def _values(self, part: Any, tables: Tables) -> Tensor:
        """Return the vector added to the output if one key has all the weight, by distance: [D, H, M]."""
        added = []
        for weights in torch.eye(len(self.distances)).split(_MOST_KEYS):
            each = weights[:, None, None].expand(-1, self.heads, 1, -1)
            added.append(part.values(each, tables)[:, :, 0])  # [keys, H, D]
        return torch.cat(added).permute(2, 1, 0).flip(-1)


def _similarity(vectors: Tensor) -> Tensor:
    """Return the cosines [M, M] of the ``vectors`` [X, H, M] at two distances, the mean over heads."""
    unit = F.normalize(vectors, dim=0)
    return torch.einsum("xhm,xhn->hmn", unit, unit).mean(dim=0)
