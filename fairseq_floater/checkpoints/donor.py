"""Check the donor of a warm start: a model of the same family and shape; derive the new one's options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from fairseq_floater.checkpoints.dictionaries import task_options_of
from fairseq_floater.checkpoints.families import (
    FAMILIES,
    ROBERTA,
    Family,
    architecture,
    family_of,
)
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import UsageError, refused_options
from fairseq_floater.position_encoders import all_options

_UNSET = object()


class PlainDonor(NamedTuple):
    """Describe a donor by what it is without our positions.

    Attributes:
        state: its tensors, under today's names.
        args: its options.
        base: whether fairseq's own positions stand underneath.
        lost: the encoder of ours whose positions are left out; empty where nothing of them is.
    """

    state: dict[str, Tensor]
    args: argparse.Namespace
    base: bool
    lost: str = ""

    @property
    def positionless(self) -> bool:
        """Return whether the donor, too, knows no positions."""
        return not self.base and not self.lost


def target_args(
    donor_args: argparse.Namespace, arch: str, options: Sequence[str], donor: Any
) -> argparse.Namespace:
    """Return the donor's model options under ``arch``, explicit ones on top.

    Args:
        donor_args: the donor's options.
        arch: one of ours, see :data:`FAMILIES`.
        options: words of a command line.
        donor: its name in messages.

    Raises:
        CheckpointError: the donor is of another family, or of another shape.
        ValueError: an unknown ``arch``.
    """
    family = family_of(arch)
    if family is None or arch not in family.architectures:
        known = ", ".join(name for of_ours in FAMILIES for name in of_ours.architectures)
        raise ValueError(f"`--arch` must be one of {known}, but is {arch!r} instead.")
    donor_arch = architecture(donor_args)
    if family_of(donor_arch) is not family or not hasattr(donor_args, "encoder_embed_dim"):
        raise CheckpointError(f"{donor} is no {family.name}: its architecture is {donor_arch!r}.")
    explicit = _explicit_options(family, options)
    wanted = argparse.Namespace(**vars(explicit))
    _take_shape(wanted, donor_args, arch, family)
    ARCH_CONFIG_REGISTRY[arch](wanted)
    for name in family.shape_options:
        ours, theirs = getattr(wanted, name, None), getattr(donor_args, name, None)
        if theirs is not None and ours != theirs:
            flag = "--" + name.replace("_", "-")
            raise CheckpointError(
                f"{donor} is of another shape: its {flag} is {theirs} (--arch {donor_arch}), but "
                f"--arch {arch} has {ours}; pass the architecture of the donor's name, or {flag}."
            )
    merged = {**vars(donor_args), **vars(explicit), "arch": arch, "_name": arch}
    if family is ROBERTA and not hasattr(explicit, "max_positions"):
        # The length of the donor's table, whatever its options say.
        merged.pop("max_positions", None)
    # A donor trained with the plugin does not decide where the new model's positions come from.
    names = [option.dest for option in all_options()]
    names += ["no_token_positional_embeddings"] if donor_arch in family.architectures else []
    for name in names:
        if not hasattr(explicit, name):
            merged.pop(name, None)
    # The donor holds the vectors that it began with, and their files need not be there any more.
    merged["encoder_embed_path"] = merged["decoder_embed_path"] = None
    args = argparse.Namespace(**merged)
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def check_options_of_a_warm_start(arch: str, words: Sequence[str]) -> None:
    """Check options of a command line before there is a donor.

    Args:
        arch: one of ours, see :data:`FAMILIES`.
        words: of the command line.

    Raises:
        UsageError: one is no option of the model, or fixes its shape, which is the donor's.
    """
    family = family_of(arch)
    assert family is not None
    with refused_options("Options of a warm start are the model's alone"):
        explicit = _explicit_options(family, words)
    for name in family.shape_options:
        if hasattr(explicit, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"`{flag}` cannot be given to a warm start, whose shape is the donor's: change it in the "
                "configuration, or train from random parameters (`--scratch`)."
            )


def _explicit_options(family: Family, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command line into the model's options that they name, and no defaults."""
    parser = argparse.ArgumentParser(
        prog="floater warm-start", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    family.ours.add_args(parser)
    # fairseq's own defaults of some options would pass for the user's words.
    unset = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args([])), _UNSET))
    given = vars(parser.parse_args(list(words), unset))
    return argparse.Namespace(**{k: v for k, v in given.items() if v is not _UNSET})


def _take_shape(
    wanted: argparse.Namespace, donor_args: argparse.Namespace, arch: str, family: Family
) -> None:
    """Give ``wanted`` the donor's shape where ``arch`` is the same named one: what the donor changed of it.

    The family's generic architecture is any shape.
    """
    named, theirs = family.architectures, architecture(donor_args)
    is_named = theirs == named[arch] and theirs != named.get(family.generic or "")
    if not is_named and arch not in (theirs, family.generic):
        return
    for name in family.shape_options:
        if not hasattr(wanted, name) and hasattr(donor_args, name):
            setattr(wanted, name, getattr(donor_args, name))


def complete_languages(args: argparse.Namespace, state: dict[str, Any], data: str) -> None:
    """Fill in the languages of ``args``: the task's, or, as fairseq does, those that ``data`` is named by.

    A training without ``-s`` and ``-t`` keeps none in its checkpoint.
    """
    from fairseq.data import data_utils

    folder = Path(data.split(os.pathsep)[0])
    named = data_utils.infer_language_pair(str(folder)) if folder.is_dir() else (None, None)
    task = task_options_of(state)
    for name, in_data in zip(("source_lang", "target_lang"), named):
        setattr(args, name, getattr(args, name, None) or task.get(name) or in_data)
