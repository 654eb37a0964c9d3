"""Read the donor of a warm start, and decide what the new model takes from it."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from fairseq_floater.checkpoints.dictionaries import complete_languages, load_dictionaries
from fairseq_floater.checkpoints.families import (
    DEFAULT_POSITIONS,
    FAMILIES,
    ROBERTA,
    ROBERTA_TABLE,
    Family,
    architecture,
    family_of,
    not_of_family,
    split_heads,
)
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    is_position,
    load_checkpoint,
    model_args,
)
from fairseq_floater.checkpoints.rebuild import BareTask, build_model
from fairseq_floater.errors import UsageError, parsed
from fairseq_floater.position_encoders import (
    POSITION_ENCODERS,
    all_options,
    encoder_class,
    has_base,
)
from fairseq_floater.position_encoders.floater_options import BIAS, ZERO
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.shared_options import BOTH
from fairseq_floater.transformer.owners import biases_of, positions_of, scale_queries

# Values of `--extend`.
TILE, LAST = "tile", "last"
_NO_BASE = "no_token_positional_embeddings"
_UNSET = object()


@dataclasses.dataclass(frozen=True)
class Donor:
    """A checkpoint that a model starts from.

    Attributes:
        path: its file, for messages.
        state: the checkpoint as it was read.
        arch: name of its architecture, if the checkpoint has one.
        args: its model options; complete if it was trained with the plugin.
        family: translation models or RoBERTas.
        dictionaries: of source and target.
        tensors: those that can be copied, under today's names.
        heads: names of the classification heads' tensors.
        has_encoder: whether ``tensors`` include a position encoder of this package.
        base: whether the donor has fairseq's own position embeddings.
        lost: name of the position encoder that was left out; empty if none was.
    """

    path: str | os.PathLike[str]
    state: dict[str, Any]
    arch: str | None
    args: argparse.Namespace
    family: Family
    dictionaries: tuple[Dictionary, Dictionary]
    tensors: dict[str, Tensor]
    heads: list[str]
    has_encoder: bool
    base: bool
    lost: str = ""

    def build(self) -> Any:
        """Build its model, in evaluation mode."""
        args = argparse.Namespace(**vars(self.args))
        return build_model(self.state, args, self.path, self.dictionaries)


def read_donor(path: str | os.PathLike[str], arch: str, data: str | None) -> Donor:
    """Read a donor of the family of ``arch``; its dictionaries must be those of ``data``, if given.

    Raises:
        CheckpointError: the file is unusable, or of another family, or has other dictionaries.
        ValueError: ``arch`` is unknown.
    """
    family = family_of(arch)
    if family is None or arch not in family.architectures:
        known = ", ".join(name for each in FAMILIES for name in each.architectures)
        raise ValueError(f"`--arch` must be one of {known}, but is {arch!r} instead.")
    state = load_checkpoint(path)
    args = model_args(state, path)
    name = architecture(args)
    if family_of(name) is not family or not hasattr(args, "encoder_embed_dim"):
        raise not_of_family(path, family.name, name)
    if data is not None:
        complete_languages(args, state, data)
    dictionaries = load_dictionaries(state, args, path, data)
    has_encoder = family.has_positions(name)
    if has_encoder:
        ARCH_CONFIG_REGISTRY[name](args)
    base = has_base(args) if has_encoder else not getattr(args, _NO_BASE, False)
    tensors, heads = dict(state["model"]), list[str]()
    if family is ROBERTA:
        tensors, heads = split_heads(tensors)
    return Donor(path, state, name, args, family, dictionaries, tensors, heads, has_encoder, base)


def start_model(
    donor: Donor, arch: str, options: Sequence[str], extend: str | None, seed: int
) -> tuple[Donor, argparse.Namespace, Any]:
    """Decide what to copy from the donor, and build the new model with random parameters.

    The donor's position encoder is removed unless the new model has the same one in the same shape, begun
    in the same way.

    Returns:
        The donor with the tensors to copy, the new model's options, and the new model.
    """
    start, args = donor, _new_options(donor, arch, options)
    keep_rows = POSITION_ENCODERS[args.position_encoder].base != "itself"
    if donor.has_encoder and not _keeps_encoder(donor.args, args):
        start = _without_encoder(donor, keep_rows)
    start, args, model = _build(start, arch, options, extend, seed)
    if start.has_encoder:
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        positions = [name for name in start.tensors if is_position(name)]
        if any(shapes.get(name) != start.tensors[name].shape for name in positions):
            start = _without_encoder(donor, keep_rows)
            start, args, model = _build(start, arch, options, extend, seed)
    return start, args, model


def _build(
    donor: Donor, arch: str, options: Sequence[str], extend: str | None, seed: int
) -> tuple[Donor, argparse.Namespace, Any]:
    args = _new_options(donor, arch, options)
    if donor.family is ROBERTA:
        donor = _with_length(donor, args, extend)
    torch.manual_seed(seed)
    return donor, args, donor.family.model.build_model(args, BareTask(*donor.dictionaries))


def _new_options(donor: Donor, arch: str, options: Sequence[str]) -> argparse.Namespace:
    """Return the donor's model options under ``arch``, overridden by the command line's ``options``."""
    family = donor.family
    explicit = _explicit_options(family, options)
    shape = argparse.Namespace(**explicit)
    if _takes_shape(arch, donor.arch, family):
        for name in family.shape_options:
            if name not in explicit and hasattr(donor.args, name):
                setattr(shape, name, getattr(donor.args, name))
    ARCH_CONFIG_REGISTRY[arch](shape)
    for name in family.shape_options:
        new, old = getattr(shape, name, None), getattr(donor.args, name, None)
        if old is not None and new != old:
            flag = "--" + name.replace("_", "-")
            raise CheckpointError(
                f"{donor.path} has another shape: its {flag} is {old} (--arch {donor.arch}), but "
                f"--arch {arch} has {new}; pass the architecture named after the donor's, or {flag}."
            )
    # A donor does not decide where the new model's positions come from.
    renewed = [option.dest for option in all_options()]
    renewed += [_NO_BASE] if family.has_positions(donor.arch) else []
    renewed += ["max_positions"] if family is ROBERTA else []  # the length of its table
    args = {name: value for name, value in vars(donor.args).items() if name not in renewed}
    args |= {**explicit, "arch": arch, "_name": arch}
    # The donor holds its pretrained embeddings; their files may be gone.
    args |= {"encoder_embed_path": None, "decoder_embed_path": None}
    completed = argparse.Namespace(**args)
    ARCH_CONFIG_REGISTRY[arch](completed)
    return completed


def _takes_shape(arch: str, donor_arch: str | None, family: Family) -> bool:
    """Return whether ``arch`` takes the donor's shape, which may differ from its architecture's."""
    if arch in (donor_arch, family.generic):
        return True
    generic = family.architectures.get(family.generic or "")
    return donor_arch == family.architectures[arch] and donor_arch != generic


def _explicit_options(family: Family, options: Sequence[str]) -> dict[str, Any]:
    """Parse the model options that a command line names, without defaults.

    Raises:
        UsageError: the model has no such option.
    """
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    family.model.add_args(parser)
    # Otherwise fairseq's defaults of some options would look like the user's choice.
    unset = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args([])), _UNSET))
    rule = "A warm start takes only options of the model"
    given = parsed(parser, lambda parser: parser.parse_args(list(options), unset), rule)
    return {name: value for name, value in vars(given).items() if value is not _UNSET}


def check_options_of_a_warm_start(arch: str, options: Sequence[str]) -> None:
    """Check the options of a command line before a donor is trained; ``arch`` is of this package.

    Raises:
        UsageError: the model has no such option, or it fixes the shape, which is the donor's.
    """
    family = family_of(arch)
    assert family is not None
    explicit = _explicit_options(family, options)
    for name in family.shape_options:
        if name in explicit:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"`{flag}` cannot be given to a warm start: the donor sets the shape. Change it in the "
                "configuration, or train from random parameters (`--scratch`)."
            )


def _keeps_encoder(before: argparse.Namespace, now: argparse.Namespace) -> bool:
    """Return whether ``now`` keeps encoder and blocks of ``before`` and asks for no other start."""
    classes = (encoder_class(args.position_encoder, args.position_target) for args in (before, now))
    return (
        len({*classes}) == 1
        and before.position_blocks == now.position_blocks
        and now.floater_start in (ZERO, before.floater_start)
    )


@torch.no_grad()
def _without_encoder(donor: Donor, keep_rows: bool) -> Donor:
    """Fold the donor's position encoder into fairseq's parameters as far as they can hold it.

    A sinusoid at the input becomes fairseq's sinusoid. Learned rows at the input become fairseq's learned
    table if ``keep_rows``. A different scale of the logits is multiplied into q_proj. p(0) that replaced
    biases is added back to them. The rest of the encoder is dropped.
    """
    model, args = donor.build(), argparse.Namespace(**vars(donor.args))
    stacks, encoder = donor.family.stacks(model), args.position_encoder
    for positions in positions_of(stacks):
        scale_queries(positions, 1)
        if encoder == "floater" and args.floater_start == BIAS:
            for part, start, bias in biases_of(positions):
                bias.add_(start * part.lr_scale)
    folded = model.state_dict()
    kept = {n: folded.get(n, t) for n, t in donor.tensors.items() if not is_position(n)}
    plain = dataclasses.replace(donor, tensors=kept, args=args, has_encoder=False)
    where = args.position_blocks, args.position_target, args.position_combine
    if where == ("input", "hidden", ADD):
        if encoder == "sinusoidal":
            return dataclasses.replace(plain, base=True)
        # fairseq's table cannot hold hierarchical rows, nor rows of one side alone.
        fits = args.position_sides == BOTH and not args.learned_hierarchy and not donor.base
        if encoder == "learned" and keep_rows and fits:
            for name, stack in stacks.items():
                rows = donor.tensors[f"{name}.layers.0.positions.weight"][:, 0]
                of_padding = rows.new_zeros(stack.padding_idx + 1, rows.size(1))
                kept[f"{name}.embed_positions.weight"] = torch.cat([of_padding, rows])
            args.encoder_learned_pos = args.decoder_learned_pos = True
            return dataclasses.replace(plain, base=True)
    return dataclasses.replace(plain, lost="" if encoder == "none" else encoder)


def _with_length(donor: Donor, args: argparse.Namespace, extend: str | None) -> Donor:
    """Set a RoBERTa's ``args.max_positions`` in place, and lengthen the donor's table to it.

    Args:
        args: the new model's options; a missing ``max_positions`` becomes the donor's.
        extend: ``tile`` repeats all of the donor's rows, ``last`` the last row, ``None`` refuses.
    """
    table, path = donor.tensors.get(ROBERTA_TABLE), donor.path
    wanted = getattr(args, "max_positions", None)
    # `learned` copies the table's rows into its blocks.
    if table is None or not (has_base(args) or args.position_encoder == "learned"):
        donor_length = getattr(donor.args, "max_positions", None) or DEFAULT_POSITIONS
        args.max_positions = wanted or donor_length
        if extend is not None:
            model = path if table is None else "the new model"
            raise CheckpointError(
                f"`--extend` must not be given: {model} has no learned table of positions to lengthen."
            )
        return donor
    first = donor.dictionaries[0].pad() + 1  # rows before it belong to padding
    rows = len(table) - first
    wanted = args.max_positions = wanted or rows
    if wanted < rows:
        raise CheckpointError(
            f"`--max-positions` must be at least {rows}, which {path} has, but is {wanted} instead."
        )
    if wanted > rows and extend is None:
        raise CheckpointError(
            f"`--max-positions` must be {rows}, which {path} has, but is {wanted} instead; with "
            f"`--extend {TILE}` or `--extend {LAST}` the donor's rows, or its last one, are repeated."
        )
    if wanted == rows and extend is not None:
        raise CheckpointError(
            f"`--extend` must come with `--max-positions` above {rows}, which {path} has."
        )
    places = torch.arange(wanted)
    places = places % rows if extend == TILE else places.clamp(max=rows - 1)
    lengthened = torch.cat([table[:first], table[first:][places]])
    return dataclasses.replace(donor, tensors={**donor.tensors, ROBERTA_TABLE: lengthened})
