"""Define the position encoders: each file here that `registry.py` names is one encoder.

To add an encoder, write its file with its options, and add its line to the registry. The
command line, `floater info`, the table in docs/encoders.md and the contract tests are made from both.
Importing this package needs no torch; its classes do.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.registry import POSITION_ENCODERS as POSITION_ENCODERS
from fairseq_floater.position_encoders.registry import encoder_class as encoder_class
from fairseq_floater.position_encoders.registry import named_blocks
from fairseq_floater.position_encoders.rules import refuse
from fairseq_floater.position_encoders.rules import warnings as warnings
from fairseq_floater.position_encoders.shared_options import SHARED_OPTIONS
from fairseq_floater.position_encoders.shared_options import all_options as all_options
from fairseq_floater.position_encoders.shared_options import encoder_options as encoder_options
from fairseq_floater.position_encoders.shared_options import foreign_options as foreign_options
from fairseq_floater.position_encoders.shared_options import has_base as has_base
from fairseq_floater.position_encoders.warp_law import WarpLaw
from fairseq_floater.version import __version__

_SOLVER, _TIME = "floater_solver", "floater_time"
# A training may change these when it resumes: how a flow starts, is solved and is trained; evaluation.
# Not the factor of the learning rate: Adam's moments would keep the old one.
_CHANGEABLE = {
    *(_SOLVER, "floater_step_size", "floater_gradient", "floater_update_interval"),
    *("floater_train", "floater_freeze", "floater_init_scale"),
    *("position_eval", "decoding_weights"),
}

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder


def add_args(parser: argparse.ArgumentParser) -> None:
    for option in all_options():
        option.add_to(parser)


def complete(args: Any, stacks: tuple[str, ...] | None = None) -> type[PositionEncoder]:
    """Fill in defaults and check the options, on a Namespace or a DictConfig, in place.

    Args:
        args: the model's options.
        stacks: those of the model, see `rules.py`; None if fairseq's options are not known yet.

    Returns:
        The class of the encoder that ``args`` names.

    Raises:
        ValueError: a value outside its choices or of another type, or options that exclude each other.
    """
    # The former name, in checkpoints from before the first release.
    if getattr(args, "position_encoder", None) == "rotation":
        args.position_encoder = "rotation_flow"
    # The time of distances is logarithmic by default; of these forms, only xl takes the option.
    if getattr(args, "floater_relative", None) == "xl" and getattr(args, _TIME, None) is None:
        setattr(args, _TIME, "log")
    for option in all_options():
        value = getattr(args, option.dest, None)
        setattr(args, option.dest, option.checked(option.default if value is None else value))
    args.position_blocks = named_blocks(args.position_blocks)
    if args.position_target is None:
        args.position_target = POSITION_ENCODERS[args.position_encoder].targets[0]
    encoder = encoder_class(args.position_encoder, args.position_target)
    refuse(args, encoder, stacks)
    return encoder


def signature(args: Any) -> str:
    """Return one line that describes the positions, like sacreBLEU's signature of a score.

    It names encoder, target, blocks, base, a flow's solver, the version, and every other option that is
    not at its default. ``args`` are complete options.
    """
    named = {
        "encoder": args.position_encoder,
        "target": args.position_target,
        "blocks": args.position_blocks,
        "base": "yes" if has_base(args) else "no",
    }
    always = {"--position-encoder", "--position-target", "--position-blocks", "--position-base"}
    for option in (*SHARED_OPTIONS, *POSITION_ENCODERS[args.position_encoder].options):
        value = getattr(args, option.dest)
        if option.name not in always and (value != option.default or option.dest == _SOLVER):
            named[option.name.removeprefix("--")] = value
    return "|".join(f"{name}:{value}" for name, value in {**named, "version": __version__}.items())


def trained_options(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that must stay the same in a training; no tensor shows some, such as RoPE's base.

    Options of other encoders are not among them.
    """
    encoder = POSITION_ENCODERS.get(args.get("position_encoder") or "")
    options = (*SHARED_OPTIONS, *(encoder.options if encoder else ()))
    defaults = {o.dest: o.default for o in options if o.dest not in _CHANGEABLE}
    defaults["no_token_positional_embeddings"] = False
    # An option that an older checkpoint does not name had its default value.
    return {n: default if args.get(n) is None else args[n] for n, default in defaults.items()}


def changed_options(
    args: Mapping[str, Any], reference: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Return the :func:`trained_options` that differ between two models: name and both values."""
    this, other = trained_options(args), trained_options(reference)
    names = [name for name in this if name in other and this[name] != other[name]]
    return [(name, this[name], other[name]) for name in names]


def trained_limit(args: Any, longest: int) -> tuple[str, int, int] | None:
    """Return the encoder's limit of distances if it is above every distance in training, else None.

    Args:
        args: complete options of the model.
        longest: tokens of the longest training sentence, end symbol included.

    Returns:
        The option, its value, and the largest value that training reaches.
    """
    option = encoder_class(args.position_encoder, args.position_target).limit_option
    if option is None:
        return None
    value = encoder_options(args)[option.lstrip("-").replace("-", "_")]
    furthest = (WarpLaw.read(args) or WarpLaw()).furthest(longest)
    return (option, value, furthest) if value > furthest else None


def distance_warning(args: Any, longest: int) -> str | None:
    """Return a sentence about :func:`trained_limit` (same arguments); None if it returns None."""
    limit = trained_limit(args, longest)
    if limit is None:
        return None
    option, value, furthest = limit
    return (
        f"`{option}` is {value}, but training has no distance above {furthest} (sentences of up to "
        f"{longest} tokens); longer ones are new to the model. Pass `{option} {furthest}` "
        "or less."
    )
