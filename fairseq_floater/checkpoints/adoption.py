"""Let the position encoders of a new model start as near to its donor's function as they can."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_floater.checkpoints.donor import PlainDonor
from fairseq_floater.checkpoints.rebuild import longest_sentence
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.floater_training import BIAS
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.transformer.stack_positions import all_blocks

# A stream -> the attention of a block, and its projection, whose output the stream's rows are added to.
_PROJECTIONS = {
    "q": ("self_attn", "q_proj"),
    "k": ("self_attn", "k_proj"),
    "v": ("self_attn", "v_proj"),
    "cross_q": ("encoder_attn", "q_proj"),
    "cross_k": ("encoder_attn", "k_proj"),
    "cross_v": ("encoder_attn", "v_proj"),
}


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


def positions_of(stacks: Mapping[str, Any]) -> Iterator[Positions]:
    """Yield every position encoder of ``stacks``, which are by their place in the model."""
    for name, stack in stacks.items():
        for attribute in ("positions", "source_positions"):
            encoder = getattr(stack, attribute, None)
            if encoder is not None:
                owners: Any = [b for b in all_blocks(stack) if getattr(b, attribute) is not None]
                parts = [getattr(block, attribute) for block in owners]
                yield Positions(name, attribute, encoder, parts, owners)


def biases_of(found: Positions) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield the part of a block, p(0) of a stream, and the bias of the projection it is added to."""
    for part, block in zip(found.parts, found.blocks):
        for stream, start in zip(found.encoder.spec.streams, part.values):
            attention, projection = _PROJECTIONS[stream]
            yield part, start, getattr(getattr(block, attention), projection).bias


def adopt(
    stacks: Mapping[str, Any],
    donor: PlainDonor,
    args: argparse.Namespace,
    *,
    data: str | None,
    trained_length: int | None,
) -> list[str]:
    """Adapt the position encoders of ``stacks``, whose other tensors are the donor's already.

    Args:
        stacks: by their place in the model.
        donor: where they come from.
        args: the new model's options, complete.
        data: binarised data, whose longest training sentence is the trained length; None: none.
        trained_length: overrules ``data``.

    Returns:
        What was done, a note for each encoder where something was.
    """
    notes = []
    for found in positions_of(stacks):
        name, encoder, stack = found.stack, found.encoder, stacks[found.stack]

        def donor_rows(limit: int, name: str = name, stack: Any = stack) -> Tensor:
            length = min(trained_length or longest_sentence(data, name, args) or limit, limit)
            return _donor_rows(donor, name, stack, args, length)

        attentions = [block.self_attn for block in found.blocks]
        stays = encoder.spec.base_at_input or donor.positionless
        note = encoder.adopt_donor(found.parts, attentions, donor_rows, stays)
        if isinstance(encoder, FloaterPositions) and args.floater_start == BIAS:
            with torch.no_grad():
                for part, start, bias in biases_of(found):
                    start.copy_(bias / part.lr_scale)
                    bias.zero_()
            note = "p(0) starts at the donor's biases, which are zero now"
        if note:
            side = "" if found.attribute == "positions" else ", source positions"
            notes.append(f"{name}{side}: {note}")
    return notes


def _donor_rows(
    donor: PlainDonor, name: str, stack: Any, args: argparse.Namespace, length: int
) -> Tensor:
    """Return the donor's positions at the input of the stack ``name``, at most ``length``: float32 [n, C]."""
    learned = donor.state.get(f"{name}.embed_positions.weight")
    if not donor.base or getattr(args, "no_token_positional_embeddings", False):
        return torch.zeros(0, stack.positions.spec.dim)
    if learned is not None:
        return learned[stack.padding_idx + 1 :][:length].float()
    return sinusoid_rows(length, stack.positions.spec.dim, stack.padding_idx)
