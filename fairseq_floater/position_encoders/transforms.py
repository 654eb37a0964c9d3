"""Number the tokens: each by its place among the real ones, or where training put it (`warp.py`).

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

# A target token between two source tokens (`--position-cross-ratio`) has a row of its own up to this many
# parts of a token, ...
MOST_PARTS = 20
# ... and elsewhere the nearest of this many.
USUAL_PARTS = 16


def token_positions(is_padding: Tensor) -> Tensor:
    """Count the real tokens from 0, wherever the padding stands.

    Shapes: ``is_padding`` [B, T] bool -> [B, T] int64. A padded slot takes the position of the
    token before it (0 without one): attention masks it out, it only has to be a valid row.
    """
    return ((~is_padding).cumsum(1) - 1).clamp_(min=0)


def gather_rows(table: Tensor, positions: Tensor) -> Tensor:
    """Gather rows of ``table`` [N, C] by time-first ``positions`` [T, B or 1]: [T, B or 1, C].

    Without any position, [0], token i of every sentence has row i: nothing is gathered, and no
    gradient scattered.
    """
    return F.embedding(positions, table) if positions.numel() else table.unsqueeze(1)


@dataclass(frozen=True)
class Places:
    """Say at which positions a table has rows: every 1/r of a token, some of them before position 0.

    Attributes:
        count: N, of rows.
        per_token: r; 1 but where training puts tokens between two positions.
        before: how many of the rows lie before position 0.
    """

    count: int
    per_token: int = 1
    before: int = 0

    def in_tokens(self, device: torch.device | None = None) -> Tensor:
        """Return the positions, the first token unmoved at 0: float64 [N]."""
        numbers = torch.arange(self.count, dtype=torch.float64, device=device)
        return (numbers - self.before) / self.per_token


class At(NamedTuple):
    """Say where queries and keys stand, in units of a token divided by ``rows_per_token``.

    Attributes:
        queries: [B or 1, T], int64.
        keys: [B or 1, S], int64; while decoding they include all tokens before the query.
        num_rows: N, more than any position.
        rows_per_token: 1, but where training puts tokens between two positions.
        rows_before: of the N rows, those before position 0, where training may put tokens;
            counting begins with the first of them.
        inside: where positions are those of segments, the places of queries in theirs, [B, T].
        law: of ``--position-eval``, in evaluation.
        lengths: tokens of each source, [B, 1], where the law asks for them.
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
        """Return d = i - j, [B or 1, T, S], positive where the key comes first, or what it counts as."""
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

    @property
    def query_places(self) -> Tensor:
        """Return where queries stand in tokens, the first one unmoved at 0: float32 [B or 1, T]."""
        return (self.queries - self.rows_before) / self.rows_per_token


@dataclass(frozen=True)
class Warp(ABC):
    """Say where the tokens of one side of a batch stand: drawn (`warp.py`) or read (`segments.py`)."""

    @abstractmethod
    def rows(self, positions: Tensor) -> tuple[Tensor, int, int]:
        """Return the rows [B, T] of tokens number ``positions`` [B, T], counted from the first one.

        Returns:
            The rows, how many the table has, and how many of them lie before position 0.
        """

    def of_target(self, is_padding: Tensor) -> Warp:
        """Return that of the translations; ``is_padding`` [B, T] says where their tokens are."""
        return self

    def inside(self, positions: Tensor) -> Tensor | None:
        """Return the places of tokens number ``positions`` [B or 1, T] in their segments, if these count."""
        return None

    @property
    def rows_per_token(self) -> int:
        return 1

    def reordered(self, new_order: Tensor) -> Self:
        """Follow the sentences of a search, which are taken in ``new_order``."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {k: v.index_select(0, new_order) for k, v in held.items() if torch.is_tensor(v)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class Tokens:
    """Describe the tokens of one batch on one side.

    Attributes:
        is_padding: [B, T] bool.
        has_padding: anywhere.
        padding_at_ends: no token stands between two padded slots of a sentence.
        padding_behind: all of it follows its sentence, so that a causal mask hides it.
        last_only: only the last token asks for positions, as in a step of decoding.
        warp: where they stand; None: each at its number.
    """

    is_padding: Tensor
    has_padding: bool
    padding_at_ends: bool
    padding_behind: bool
    last_only: bool = False
    warp: Warp | None = None

    @classmethod
    def read(cls, is_padding: Tensor, last_only: bool = False, warp: Warp | None = None) -> Tokens:
        """Look where the padding of ``is_padding`` [B, T] stands; reads the device once or twice."""
        if not bool(is_padding.any()):
            return cls(is_padding, False, True, True, last_only, warp)
        changes = (is_padding[:, 1:] ^ is_padding[:, :-1]).sum(1).max()
        changes, in_front = torch.stack([changes, is_padding[:, 0].any().long()]).tolist()
        at_ends = changes <= 1
        return cls(is_padding, True, at_ends, at_ends and not in_front, last_only, warp)

    @property
    def in_order(self) -> bool:
        """Return whether slot i of every sentence may have row i: nothing looks at padding behind."""
        return self.padding_behind and not self.last_only and self.warp is None

    def at(self, slots_do: bool) -> At:
        """Number the tokens; with ``slots_do``, by their slots where padding stands at the ends.

        Without padding one row of numbers serves all sentences.
        """
        # Moved positions are rounded: counted by slot, the result would depend on the padding.
        slots_do = slots_do and self.padding_at_ends and self.warp is None
        if slots_do or not self.has_padding:
            keys = torch.arange(self.is_padding.size(1), device=self.is_padding.device)[None]
        else:
            keys = token_positions(self.is_padding)
        num_rows, rows_per_token, before, inside = self.is_padding.size(1), 1, 0, None
        if self.warp is not None:
            inside = self.warp.inside(keys)
            keys, num_rows, before = self.warp.rows(keys)
            rows_per_token = self.warp.rows_per_token
        asked = slice(-1, None) if self.last_only else slice(None)
        inside = None if inside is None else inside[:, asked]
        return At(keys[:, asked], keys, num_rows, rows_per_token, before, inside)

    def facing(self, source: Tokens, ratio: float) -> At:
        """Number these target tokens as queries, and the tokens of ``source`` as keys.

        Target token i stands at ``ratio`` i, rounded to a part of a token where a table has no row.
        """
        target, keys = self.at(slots_do=False), source.at(slots_do=False)
        parts = 1
        if target.rows_per_token == 1:  # else the rows of both are parts of a token already
            exact = Fraction(ratio).limit_denominator(MOST_PARTS)
            parts = exact.denominator if float(exact) == ratio else USUAL_PARTS
        before, times = target.rows_before, ratio * parts
        queries = target.queries
        if times != 1:
            queries = ((queries - before).double() * times).round().long() + before
        last = max(math.ceil((target.num_rows - 1) * times), (keys.num_rows - 1) * parts)
        return At(queries, keys.keys * parts, last + 1, target.rows_per_token * parts, before)
