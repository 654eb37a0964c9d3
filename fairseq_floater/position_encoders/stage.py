"""Define the third kind of position encoder: a stage that changes a block's input.

A stage needs no table. Order enters through neighbouring tokens (a convolution, a recurrence) or through
a rotation of each word's embedding. In a decoder a stage sees only earlier tokens, and while decoding
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


class ForwardPass(NamedTuple):
    """Hold a stage's arguments in one forward pass of its stack.

    Attributes:
        tokens: the tokens of the batch; while decoding, the stream holds only the last one.
        tables: the tensors that the stage prepared once for all blocks.
        incremental_state: fairseq's state while decoding, else None.
    """

    tokens: Tokens
    tables: Tables = ()
    incremental_state: IncrementalState | None = None

    @property
    def padded(self) -> Tensor | None:
        """Return which slots of the stream are padding, [T, B, 1]; None if no sentence has padding."""
        tokens = self.tokens
        if not tokens.has_padding:
            return None
        is_padding = tokens.is_padding[:, -1:] if tokens.last_only else tokens.is_padding
        return is_padding.T.unsqueeze(-1)


class StatefulPart(BlockPositions):
    """Keep what one block's stage needs of earlier tokens between decoding steps."""

    @property
    def _key(self) -> str:
        return f"position_stage.{self.block_index}"

    def recall(self, incremental_state: IncrementalState) -> Tensor | None:
        """Return the tensor that the last step kept, [any, B, C]; None at the first step."""
        return incremental_state.get(self._key, {}).get("kept")

    def keep(self, incremental_state: IncrementalState, kept: Tensor) -> None:
        incremental_state[self._key] = {"kept": kept}

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the sentences as the beam search does; fairseq's decoder calls this on each module."""
        kept = self.recall(incremental_state)
        if kept is not None:
            self.keep(incremental_state, kept.index_select(1, new_order))


class InputStage(PositionEncoder):
    """Change the input of the first block or of every block; subclasses define the change.

    A stage replaces fairseq's sinusoid. For the first block it changes the embedded tokens before
    dropout.
    """

    targets = ("stage",)
    base = "replaced"
    tabulated = False

    def prepare(self, words: Tensor, tokens: Tokens, dtype: torch.dtype) -> Tables:
        """Compute the tensors that all blocks share, once a forward pass.

        Args:
            words: [B, T], dictionary indices of the tokens in the stream.
            tokens: the tokens of the batch; while decoding, the stream holds only the last one.
            dtype: of the model.
        """
        return ()

    def enter(self, x: Tensor, part: Any, forward_pass: ForwardPass) -> Tensor:
        """Return the changed input of the block of ``part``: [T, B, C] -> [T, B, C]."""
        padded = forward_pass.padded
        # Padded slots hold values that attention left there. No token and no gradient may see these.
        return self.change(x if padded is None else x.masked_fill(padded, 0), part, forward_pass)

    @abstractmethod
    def change(self, x: Tensor, part: Any, forward_pass: ForwardPass) -> Tensor:
        """Return the same as :meth:`enter`, given an input that is zero in padded slots."""


def without_gaps(run: Callable[[Tensor], Tensor], x: Tensor, is_padding: Tensor) -> Tensor:
    """Apply ``run`` to sentences with their tokens moved to the front, and move the results back.

    Shapes: ``x`` [T, B, C] -> [T, B, C]; a padded slot gets the result of the token before it.

    Args:
        run: maps an input with all padding at the end, [T, B, C], to a result of the same shape.
        x: the input.
        is_padding: [B, T] bool.
    """
    tokens_first = is_padding.to(torch.uint8).argsort(dim=1, stable=True)  # [B, T]
    moved = x.take_along_dim(tokens_first.T.unsqueeze(-1), dim=0)
    return run(moved).take_along_dim(token_positions(is_padding).T.unsqueeze(-1), dim=0)
