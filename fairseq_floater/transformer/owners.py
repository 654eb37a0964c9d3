"""Find the position encoders of a model, and what they act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_floater.position_encoders.hooks import NEUTRAL
from fairseq_floater.position_encoders.in_attention import AttentionPositions
from fairseq_floater.transformer.blocks import projection_of
from fairseq_floater.transformer.stack_positions import owned_parts, owning_blocks


class AttachedEncoder(NamedTuple):
    """A position encoder of a model, and what it acts on.

    Attributes:
        stack: module name of its stack in the model.
        attribute: ``positions`` or ``source_positions``.
        encoder: the stack's position encoder.
        parts: its part in each block that receives positions.
        blocks: these blocks.
    """

    stack: str
    attribute: str
    encoder: Any
    parts: list[Any]
    blocks: list[Any]


def positions_of(stacks: Mapping[str, Any]) -> Iterator[AttachedEncoder]:
    """Yield every position encoder of ``stacks``, which maps module names to stacks."""
    for name, stack in stacks.items():
        for attribute in ("positions", "source_positions"):
            encoder = getattr(stack, attribute, None)
            if encoder is not None:
                owners, parts = owning_blocks(stack, attribute), owned_parts(stack, attribute)
                yield AttachedEncoder(name, attribute, encoder, parts, owners)


def biases_of(positions: AttachedEncoder) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield, for each block and stream, the part, p(0), and the bias of the projection that p(0) enters."""
    for part, block in zip(positions.parts, positions.blocks):
        for stream, start in zip(positions.encoder.spec.streams, part.values):
            yield part, start, projection_of(block, stream).bias


@torch.no_grad()
def scale_queries(positions: AttachedEncoder, power: int) -> float:
    """Multiply each q_proj by the scale of its logits, divided by the usual scale, to ``power``.

    Returns:
        the factor; 1 if the encoder leaves the scale as it is.
    """
    factor = 1.0
    if isinstance(positions.encoder, AttentionPositions):
        spec = positions.encoder.spec
        for part, block in zip(positions.parts, positions.blocks):
            factor = (part.scaling(spec.head_dim) / NEUTRAL.scaling(spec.head_dim)) ** power
            attention = block.encoder_attn if spec.crosses else block.self_attn
            for parameter in attention.q_proj.parameters():
                parameter.mul_(factor)
    return factor
