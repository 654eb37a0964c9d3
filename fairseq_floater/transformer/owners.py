"""Find the position encoders of a model, and what they act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fairseq_floater.transformer.blocks import projection_of
from fairseq_floater.transformer.stack_positions import owned_parts, owning_blocks


class Positions(NamedTuple):
    """Hold a position encoder of a model with what it acts on.

    Attributes:
        stack: its stack's place in the model.
        attribute: ``positions`` or ``source_positions``.
        encoder: of the stack.
        parts: of the blocks that receive positions.
        blocks: these blocks.
    """

    stack: str
    attribute: str
    encoder: Any
    parts: list[Any]
    blocks: list[Any]

    @property
    def attentions(self) -> list[Any]:
        """Return the attention of each block that an encoder of distances acts in."""
        crosses = self.encoder.spec.crosses
        return [block.encoder_attn if crosses else block.self_attn for block in self.blocks]


def positions_of(stacks: Mapping[str, Any]) -> Iterator[Positions]:
    """Yield every position encoder of ``stacks``, which are by their place in the model."""
    for name, stack in stacks.items():
        for attribute in ("positions", "source_positions"):
            encoder = getattr(stack, attribute, None)
            if encoder is not None:
                owners, parts = owning_blocks(stack, attribute), owned_parts(stack, attribute)
                yield Positions(name, attribute, encoder, parts, owners)


def biases_of(positions: Positions) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield the part of a block, p(0) of a stream, and the bias of the projection it is added to."""
    for part, block in zip(positions.parts, positions.blocks):
        for stream, start in zip(positions.encoder.spec.streams, part.values):
            yield part, start, projection_of(block, stream).bias
