"""Let the position encoders of a new model start as near to its donor's function as they can."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.checkpoints.donor import PlainDonor
from fairseq_floater.checkpoints.rebuild import longest_sentence
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.floater_options import BIAS
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.transformer.owners import biases_of, positions_of


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
    for positions in positions_of(stacks):
        name, encoder, stack = positions.stack, positions.encoder, stacks[positions.stack]

        def donor_rows(limit: int, name: str = name, stack: Any = stack) -> Tensor:
            length = min(trained_length or longest_sentence(data, name, args) or limit, limit)
            return _donor_rows(donor, name, stack, args, length)

        attentions = [block.self_attn for block in positions.blocks]
        stays = encoder.spec.base or donor.positionless
        note = encoder.adopt_donor(positions.parts, attentions, donor_rows, stays)
        if isinstance(encoder, FloaterPositions) and args.floater_start == BIAS:
            with torch.no_grad():
                for part, start, bias in biases_of(positions):
                    start.copy_(bias / part.lr_scale)
                    bias.zero_()
            note = "p(0) starts at the donor's biases, which are zero now"
        if note:
            side = "" if positions.attribute == "positions" else ", source positions"
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
