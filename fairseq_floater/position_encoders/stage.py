"""Define the third kind of position encoder: a stage that the stream passes before a block.

It needs no table: order enters by the tokens before and after (a convolution, a recurrence) or by
what a word does to its embedding. In a decoder it sees the tokens before, and while decoding
it keeps what it needs of them.

Letters: T tokens, B sentences, C channels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_floater.position_encoders.base import BlockPositions, PositionEncoder
from fairseq_floater.position_encoders.hooks import IncrementalState, Tables
from fairseq_floater.position_encoders.transforms import Tokens, token_positions

STAGE = "stage"


class Pass(NamedTuple):
    """Say what a stage works with in one forward pass of its stack.

    Attributes:
        tokens: whose stream it is; while decoding, the last of them alone.
        tables: what the stage prepared once for all blocks.
        incremental_state: of the decoding, or None.
    """

    tokens: Tokens
    tables: Tables = ()
    incremental_state: IncrementalState | None = None

    @property
    def padded(self) -> Tensor | None:
        """Return which slots of the stream are padding, [T, B, 1]; None where no sentence has any."""
        tokens = self.tokens
        if not tokens.has_padding:
            return None
        is_padding = tokens.is_padding[:, -1:] if tokens.last_only else tokens.is_padding
        return is_padding.T.unsqueeze(-1)


class StatefulPart(BlockPositions):
    """Keep, between the steps of decoding, what one block's stage needs of the tokens before."""

    @property
    def _key(self) -> str:
        return f"position_stage.{self.block_index}"

    def recall(self, incremental_state: IncrementalState) -> Tensor | None:
        """Return what the last step kept, [any, B, C]; None at the first."""
        return incremental_state.get(self._key, {}).get("kept")

    def keep(self, incremental_state: IncrementalState, kept: Tensor) -> None:
        incremental_state[self._key] = {"kept": kept}

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Follow the beams of a search; fairseq's decoder calls this on each of its modules."""
        kept = self.recall(incremental_state)
        if kept is not None:
            self.keep(incremental_state, kept.index_select(1, new_order))


class InputStage(PositionEncoder):
    """Change the stream before the first block or every block; subclasses say how.

    It replaces fairseq's sinusoid. In the first block it acts on the embedded tokens, before their
    dropout.
    """

    targets = (STAGE,)
    base = "replaced"
    tabulated = False

    def prepare(self, words: Tensor, tokens: Tokens, dtype: torch.dtype) -> Tables:
        """Compute what is the same before every block, once a forward pass.

        Args:
            words: [B, T], the dictionary's numbers of the tokens in the stream.
            tokens: where they stand; while decoding, the last alone is in the stream.
            dtype: of the model.
        """
        return ()

    def enter(self, x: Tensor, part: Any, at: Pass) -> Tensor:
        """Return the stream [T, B, C] that the block of ``part`` gets for ``x`` [T, B, C]."""
        padded = at.padded
        # Padded slots hold what attention left in them: no token and no gradient may see that.
        return self.change(x if padded is None else x.masked_fill(padded, 0), part, at)

    @abstractmethod
    def change(self, x: Tensor, part: Any, at: Pass) -> Tensor:
        """Do what :meth:`enter` says for a stream that is zero where it is padded."""


def without_gaps(run: Callable[[Tensor], Tensor], x: Tensor, is_padding: Tensor) -> Tensor:
    """Apply ``run`` to sentences whose tokens have been moved to the front, in their order.

    Shapes: ``x`` [T, B, C] -> [T, B, C]; a padded slot gets what the token before it gets.

    Args:
        run: from streams with their padding behind, [T, B, C], to the same.
        x: the stream.
        is_padding: [B, T] bool.
    """
    tokens_first = is_padding.to(torch.uint8).argsort(dim=1, stable=True)  # [B, T]
    moved = x.take_along_dim(tokens_first.T.unsqueeze(-1), dim=0)
    return run(moved).take_along_dim(token_positions(is_padding).T.unsqueeze(-1), dim=0)
