"""Give each token its position: its number among the real tokens, or where training put it (`warp.py`).

Letters: N rows of a table, C channels, B sentences, T tokens, S source tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.position_encoders.eval_law import EvalLaw

# With `--position-cross-ratio`, target tokens may stand between source tokens. They are placed exactly if
# the ratio's denominator is at most this.
MOST_PARTS = 20
# Otherwise they are rounded to this part of a token.
USUAL_PARTS = 16


def token_positions(is_padding: Tensor) -> Tensor:
    """Count the real tokens from 0, wherever the padding stands.

    Shapes: ``is_padding`` [B, T] bool -> [B, T] int64. A padded slot takes the position of the
    token before it (0 if there is none): attention masks it out, so any valid row will do.
    """
    return ((~is_padding).cumsum(1) - 1).clamp_(min=0)


def gather_rows(table: Tensor, positions: Tensor | None) -> Tensor:
    """Gather rows of ``table`` [N, C] by time-first ``positions`` [T, B or 1]: [T, B or 1, C].

    If ``positions`` is empty, [0], token i of every sentence has row i: nothing is gathered, and no
    gradient is scattered. None means a decoding step: the token of sentence b has row b, or all share the
    only row.
    """
    if positions is None:
        return table.unsqueeze(0)
    return F.embedding(positions, table) if positions.numel() else table.unsqueeze(1)


@dataclass(frozen=True)
class Places:
    """Hold the positions of a table's rows: one every 1/r of a token, some before position 0.

    Attributes:
        count: N, the number of rows.
        per_token: r; 1 unless tokens may stand between two positions.
        before: how many of the rows lie before position 0.
    """

    count: int
    per_token: int = 1
    before: int = 0

    def in_tokens(self, device: torch.device | None = None) -> Tensor:
        """Return the positions in tokens; an unmoved first token has 0: float64 [N]."""
        numbers = torch.arange(self.count, dtype=torch.float64, device=device)
        return (numbers - self.before) / self.per_token


class Positions(NamedTuple):
    """Hold the positions of queries and keys, in units of 1 / ``rows_per_token`` of a token.

    Attributes:
        queries: [B or 1, T], int64.
        keys: [B or 1, S], int64; while decoding they include all tokens before the query.
        num_rows: N, more than any position.
        rows_per_token: 1 unless tokens may stand between two positions.
        rows_before: how many of the N rows lie before position 0, where training may put tokens;
            positions are counted from the first row.
        inside: if positions are those of segments, the queries' places in their segments, [B, T].
        law: that of ``--position-eval``, in evaluation.
        lengths: tokens of each source, [B, 1], if the law needs them.
    """

    queries: Tensor
    keys: Tensor
    num_rows: int
    rows_per_token: int = 1
    rows_before: int = 0
    inside: Tensor | None = None
    law: EvalLaw | None = None
    lengths: Tensor | None = None

    @property
    def distances(self) -> Tensor:
        """Return d = i - j as ``--position-eval`` counts it, [B or 1, T, S]; positive if the key is first."""
        distances = self.queries[:, :, None] - self.keys[:, None, :]
        if self.law is None or not self.law.changes_distances:
            return distances
        return self.law.distances(distances, self.rows_per_token)

    def frequencies(self, trained: Callable[[], Tensor]) -> Tensor | None:
        """Return the frequencies of each sentence, [B, 1, P], if ``--position-eval`` changes them; else None.

        Args:
            trained: computes the frequencies of training, [P].
        """
        if self.law is None or not self.law.changes_frequencies:
            return None
        assert self.lengths is not None
        return self.law.frequencies(trained().double(), self.lengths)


@dataclass(frozen=True)
class Warp(ABC):
    """Give the tokens of one side of a batch their positions, drawn (`warp.py`) or read (`segments.py`)."""

    @abstractmethod
    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        """Return the table's rows for tokens number ``positions`` [B, T].

        Returns:
            The rows [B, T], how many rows the table has, and how many of them lie before position 0.
        """

    def of_target(self, is_padding: Tensor) -> Warp:
        """Return the warp of the translations, given their ``is_padding`` [B, T]."""
        return self

    def inside(self, positions: Tensor) -> Tensor | None:
        """Return the places in segments of tokens number ``positions`` [B or 1, T]; None if unused."""
        return None

    @property
    def rows_per_token(self) -> int:
        return 1

    def reordered(self, new_order: Tensor) -> Self:
        """Return the warp of the sentences that a search takes in ``new_order``."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {k: v.index_select(0, new_order) for k, v in held.items() if torch.is_tensor(v)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class Tokens:
    """Describe the tokens of one batch on one side.

    Attributes:
        is_padding: [B, T] bool.
        has_padding: whether there is any padding.
        padding_at_ends: whether no token stands between two padded slots of a sentence.
        padding_behind: whether all padding follows its sentence, so that a causal mask hides it.
        last_only: whether only the last token needs a position, as in a decoding step.
        warp: gives the positions; None: each token's position is its number.
    """

    is_padding: Tensor
    has_padding: bool
    padding_at_ends: bool
    padding_behind: bool
    last_only: bool = False
    warp: Warp | None = None

    @classmethod
    def read(cls, is_padding: Tensor, last_only: bool = False, warp: Warp | None = None) -> Tokens:
        """Find where the padding of ``is_padding`` [B, T] is; reads the device once or twice."""
        if not bool(is_padding.any()):
            return cls(is_padding, False, True, True, last_only, warp)
        changes = (is_padding[:, 1:] ^ is_padding[:, :-1]).sum(1).max()
        changes, in_front = torch.stack([changes, is_padding[:, 0].any().long()]).tolist()
        at_ends = changes <= 1
        return cls(is_padding, True, at_ends, at_ends and not in_front, last_only, warp)

    @property
    def in_order(self) -> bool:
        """Return whether slot i of every sentence may have row i; nothing reads padding after a sentence."""
        return self.padding_behind and not self.last_only and self.warp is None

    def at(self, use_slots: bool) -> Positions:
        """Return the tokens' positions; with ``use_slots``, their slots if padding is only at the ends.

        Without padding, one row of positions serves all sentences.
        """
        # Moved positions are rounded, so if slots were counted, the result would depend on the padding.
        use_slots = use_slots and self.padding_at_ends and self.warp is None
        if use_slots or not self.has_padding:
            keys = torch.arange(self.is_padding.size(1), device=self.is_padding.device)[None]
        else:
            keys = token_positions(self.is_padding)
        num_rows, rows_per_token, before, inside = self.is_padding.size(1), 1, 0, None
        if self.warp is not None:
            inside = self.warp.inside(keys)
            keys, num_rows, before = self.warp.rows(keys)
            rows_per_token = self.warp.rows_per_token
        queries = slice(-1, None) if self.last_only else slice(None)
        inside = None if inside is None else inside[:, queries]
        return Positions(keys[:, queries], keys, num_rows, rows_per_token, before, inside)

    def facing(self, source: Tokens, ratio: float) -> Positions:
        """Return the positions of these target tokens as queries, and of ``source``'s tokens as keys.

        Target token i has position ``ratio`` i, rounded if the table has no row there.
        """
        target, keys = self.at(use_slots=False), source.at(use_slots=False)
        parts = 1
        if target.rows_per_token == 1:  # else the rows of both are parts of a token already
            exact = Fraction(ratio).limit_denominator(MOST_PARTS)
            parts = exact.denominator if float(exact) == ratio else USUAL_PARTS
        before, times = target.rows_before, ratio * parts
        queries = target.queries
        if times != 1:
            queries = ((queries - before).double() * times).round().long() + before
        last = max(math.ceil((target.num_rows - 1) * times), (keys.num_rows - 1) * parts)
        return Positions(
            queries, keys.keys * parts, last + 1, target.rows_per_token * parts, before
        )
