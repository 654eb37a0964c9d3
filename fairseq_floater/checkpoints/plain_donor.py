"""Take our positions off a donor: what remains is a plain one, and starts any other encoder as one does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from fairseq_floater.checkpoints.donor import PlainDonor
from fairseq_floater.checkpoints.families import Family, architecture
from fairseq_floater.checkpoints.reading import is_position
from fairseq_floater.position_encoders import all_options, encoder_class, has_base
from fairseq_floater.position_encoders.floater_options import BIAS
from fairseq_floater.position_encoders.hooks import NEUTRAL
from fairseq_floater.position_encoders.in_attention import AttentionPositions
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.shared_options import (
    ATTENTION_OPTIONS,
    BOTH,
    POSITION_SIDES,
)
from fairseq_floater.transformer.owners import biases_of, positions_of

_NO_BASE = "no_token_positional_embeddings"
# Options that change what a model computes, whatever its encoder.
_OF_ANY_ENCODER = (POSITION_SIDES, *ATTENTION_OPTIONS)


def complete_options(args: argparse.Namespace, family: Family) -> argparse.Namespace | None:
    """Return the complete options of a donor of ours; None for one of fairseq's own."""
    name = architecture(args)
    if name not in family.architectures:
        return None
    completed = argparse.Namespace(**vars(args))
    ARCH_CONFIG_REGISTRY[name](completed)
    return completed


def as_it_is(
    state: dict[str, Tensor], args: argparse.Namespace, ours: argparse.Namespace | None
) -> PlainDonor:
    """Describe a donor of fairseq's own, or one whose positions the new model has itself.

    Args:
        state: its tensors.
        args: its options.
        ours: the same, complete, of a donor of ours.
    """
    base = not getattr(args, _NO_BASE, False) if ours is None else has_base(ours)
    return PlainDonor(state, args, base)


@torch.no_grad()
def without_our_positions(
    model: Any,
    state: Mapping[str, Tensor],
    args: argparse.Namespace,
    family: Family,
    *,
    keep_rows: bool,
) -> PlainDonor:
    """Fold into a donor of ours what a plain one can hold of its positions, and leave out the rest.

    The sinusoid at the input is fairseq's own base, learned rows there are fairseq's learned table. Another
    scale of the logits goes into q_proj, and p(0) that stands for biases goes back to them.

    Args:
        model: the donor, with its parameters, which are changed in place.
        state: its tensors under today's names.
        args: its complete options.
        family: of its architecture.
        keep_rows: whether learned rows may stay, as fairseq's learned table.
    """
    stacks, plain = family.stacks(model), argparse.Namespace(**vars(args))
    base, encoder = has_base(args), args.position_encoder
    for positions in positions_of(stacks):
        if isinstance(positions.encoder, AttentionPositions):
            width = positions.encoder.spec.head_dim
            for part, block in zip(positions.parts, positions.blocks):
                for parameter in block.self_attn.q_proj.parameters():
                    parameter.mul_(part.scaling(width) / NEUTRAL.scaling(width))
        elif encoder == "floater" and args.floater_start == BIAS:
            for part, start, bias in biases_of(positions):
                bias.add_(start * part.lr_scale)
    folded = model.state_dict()
    kept = {name: folded.get(name, t) for name, t in state.items() if not is_position(name)}
    where = args.position_blocks, args.position_target, args.position_combine
    if where == ("input", "hidden", ADD):
        if encoder == "sinusoidal":
            return PlainDonor(kept, plain, base=True)
        if encoder == "learned" and keep_rows and not base and _is_fairseqs_table(args):
            for name, stack in stacks.items():
                rows = state[f"{name}.layers.0.positions.weight"][:, 0]
                of_padding = rows.new_zeros(stack.padding_idx + 1, rows.size(1))
                kept[f"{name}.embed_positions.weight"] = torch.cat([of_padding, rows])
            plain.encoder_learned_pos = plain.decoder_learned_pos = True
            return PlainDonor(kept, plain, base=True)
    return PlainDonor(kept, plain, base, "" if encoder == "none" else encoder)


def _is_fairseqs_table(args: argparse.Namespace) -> bool:
    """Return whether learned rows at the input are what fairseq's own learned tables would be."""
    return args.position_sides == BOTH and not args.learned_hierarchy


def are_the_same(ours: argparse.Namespace, args: argparse.Namespace) -> bool:
    """Return whether two models, by their complete options, have one encoder in the same blocks."""
    first, second = (
        (encoder_class(o.position_encoder, o.position_target), o.position_blocks)
        for o in (ours, args)
    )
    return first == second


def shapes_of_positions(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shapes of the tensors that belong to positions of ours."""
    return {name: tensor.shape for name, tensor in state.items() if is_position(name)}


def changes(
    donor: PlainDonor, ours: argparse.Namespace | None, args: argparse.Namespace
) -> list[str]:
    """Say what of the donor's positions is another in the new model.

    Args:
        donor: without the positions that were left out.
        ours: the complete options of a donor of ours.
        args: the new model's.
    """
    changes = [f"the donor's {donor.lost} is left out"] if donor.lost else []
    if donor.base != has_base(args):
        changes.append(f"fairseq's own positions are {'left out' if donor.base else 'new'}")
    if ours is not None:
        named = all_options() if ours.position_encoder == args.position_encoder else _OF_ANY_ENCODER
        for option in named:
            before, now = getattr(ours, option.dest), getattr(args, option.dest)
            changes += [f"{option.name} was {before} and is {now}"] if before != now else []
    return changes
