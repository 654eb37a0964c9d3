"""Let the position encoders of a new model start as near to its donor's function as they can."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

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


def adopt(
    stacks: Mapping[str, Any],
    donor_state: Mapping[str, Tensor],
    args: argparse.Namespace,
    *,
    data: str | None,
    trained_length: int | None,
) -> list[str]:
    """Adapt the position encoders of ``stacks``, whose other tensors are the donor's already.

    Args:
        stacks: by their place in the model.
        donor_state: the donor's tensors under today's names.
        args: the new model's options, complete.
        data: binarised data, whose longest training sentence is the trained length; None: none.
        trained_length: overrules ``data``.

    Returns:
        What was done, a note for each encoder where something was.
    """
    notes = []
    for name, stack in stacks.items():

        def donor_rows(limit: int, name: str = name, stack: Any = stack) -> Tensor:
            length = min(trained_length or longest_sentence(data, name, args) or limit, limit)
            return _donor_rows(donor_state, name, stack, args, length)

        for attribute in ("positions", "source_positions"):
            encoder = getattr(stack, attribute, None)
            if encoder is None:
                continue
            owners = [b for b in all_blocks(stack) if getattr(b, attribute) is not None]
            parts = [getattr(block, attribute) for block in owners]
            note = encoder.adopt_donor(parts, [block.self_attn for block in owners], donor_rows)
            if isinstance(encoder, FloaterPositions) and args.floater_start == BIAS:
                _move_biases(encoder, parts, owners)
                note = "p(0) starts at the donor's biases, which are zero now"
            if note:
                side = "" if attribute == "positions" else ", source positions"
                notes.append(f"{name}{side}: {note}")
    return notes


def _donor_rows(
    donor_state: Mapping[str, Tensor],
    name: str,
    stack: Any,
    args: argparse.Namespace,
    length: int,
) -> Tensor:
    """Return the donor's positions at the input of the stack ``name``, at most ``length``: float32 [n, C]."""
    learned = donor_state.get(f"{name}.embed_positions.weight")
    if getattr(args, "no_token_positional_embeddings", False):
        return torch.zeros(0, stack.positions.spec.dim)
    if learned is not None:
        return learned[stack.padding_idx + 1 :][:length].float()
    return sinusoid_rows(length, stack.positions.spec.dim, stack.padding_idx)


@torch.no_grad()
def _move_biases(encoder: FloaterPositions, parts: list[Any], owners: list[nn.Module]) -> None:
    """Let p(0) take over the biases of the projections that its streams are added to."""
    for part, block in zip(parts, owners):
        for stream, values in zip(encoder.spec.streams, part.values):
            attention, projection = _PROJECTIONS[stream]
            bias = getattr(getattr(block, attention), projection).bias
            values.copy_(bias / part.lr_scale)
            bias.zero_()
