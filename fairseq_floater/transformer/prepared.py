"""Hold what a position encoder prepared for the blocks of a stack in one forward pass.

Letters: N rows of the table, L blocks that receive positions, S streams, C channels, B sentences, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.hooks import Tables, own_bias
from fairseq_floater.position_encoders.signal import HIDDEN, QKV, PositionSignal
from fairseq_floater.position_encoders.stage import ForwardPass, InputStage
from fairseq_floater.position_encoders.transforms import Positions, Tokens
from fairseq_floater.transformer.blocks import projection_of
from fairseq_floater.transformer.masks import summed


class PreparedPositions:
    """No positions; subclasses hold the positions of their kind of encoder."""

    def enter(self, x: Tensor, block: nn.Module) -> Tensor:
        """Return the input ``x`` [T, B, C] of ``block`` with its positions."""
        return x

    def tables(self, block: nn.Module) -> Tables:
        """Return the tensors that ``block`` is called with."""
        return ()

    def mask(self, block: nn.Module, mask: Tensor | None) -> Tensor | None:
        """Return ``mask``, which is added to the logits, plus the position bias of ``block``, if any."""
        return mask


class PreparedSignal(PreparedPositions):
    """Hold the rows of a signal.

    A block gets, in this order: the row numbers of the tokens (see `gather_rows`), whether the rows include
    the projections' biases, and the rows of each stream, [N, C].

    Args:
        signal: the position encoder that the rows belong to.
        table: its rows, [N, S, L, C].
        owners: the L blocks, in the table's order.
        at: the positions of ``tokens``.
    """

    def __init__(
        self,
        signal: PositionSignal,
        table: Tensor,
        owners: list[nn.Module],
        tokens: Tokens,
        at: Positions,
    ):
        flat, biases = table.flatten(1, 2), None  # stream by stream, block by block: [N, S * L, C]
        if signal.spec.target == QKV and not tokens.last_only:
            biases = _projection_biases(owners, signal.spec.streams)
            flat = flat if biases is None else flat + biases
        # The backward pass of `unbind` joins the gradients of all rows at once.
        rows, count = flat.unbind(1), len(owners)
        in_order = tokens.in_order and at.num_rows == tokens.is_padding.size(1)
        self._positions: Tensor | None = None  # of a decoding step
        if not tokens.last_only:
            self._positions = at.queries.new_empty(0) if in_order else at.queries.T.contiguous()
        self._signal, self._hidden = signal, signal.spec.target == HIDDEN
        self._hold_biases = biases is not None
        self._rows = {id(block): rows[n::count] for n, block in enumerate(owners)}

    def enter(self, x: Tensor, block: nn.Module) -> Tensor:
        rows = self._rows.get(id(block)) if self._hidden else None
        return x if rows is None else self._signal.enter(x, rows[0], self._positions)

    def tables(self, block: nn.Module) -> Tables:
        rows = None if self._hidden else self._rows.get(id(block))
        return () if rows is None else (self._positions, self._hold_biases, *rows)


class PreparedAttention(PreparedPositions):
    """Hold the tables of positions inside attention, and the bias that the blocks share."""

    def __init__(self, tables: dict[int, Tables], bias: Tensor | None, rows: dict[int, Tensor]):
        self._tables = tables  # by id of the block, like `rows` [T, B or 1, C]
        self._rows = rows
        self._bias = bias
        self._merged: Tensor | None = None  # one mask for all blocks of a pass

    def enter(self, x: Tensor, block: nn.Module) -> Tensor:
        rows = self._rows.get(id(block))
        return x if rows is None else x + rows

    def tables(self, block: nn.Module) -> Tables:
        return self._tables.get(id(block), ())

    def mask(self, block: nn.Module, mask: Tensor | None) -> Tensor | None:
        if self._bias is None or id(block) not in self._tables:
            return mask
        if self._merged is None:
            self._merged = summed(self._bias, mask)
        return self._merged


class PreparedStage(PreparedPositions):
    """Run a stage before the blocks that have a part of it."""

    def __init__(self, stage: InputStage, parts: dict[int, nn.Module], forward_pass: ForwardPass):
        self._stage = stage
        self._parts = parts  # by id of the block
        self._forward_pass = forward_pass

    def enter(self, x: Tensor, block: nn.Module) -> Tensor:
        part = self._parts.get(id(block))
        return x if part is None else self._stage.enter(x, part, self._forward_pass)


def _projection_biases(owners: list[nn.Module], streams: tuple[str, ...]) -> Tensor | None:
    """Return the biases of the projections that a signal enters, stream by stream: [S * L, C].

    None if they cannot be added to the rows before the blocks run: a projection has no bias or is not a
    plain linear layer, or joint keys take rows of both sides.
    """
    if any(getattr(block, "cross_self_attention", False) for block in owners):
        return None
    biases = [own_bias(projection_of(block, stream)) for stream in streams for block in owners]
    existing = [bias for bias in biases if bias is not None]
    return torch.stack(existing) if len(existing) == len(biases) else None
