"""Say where positions come from: each file here named in `registry.py` is one encoder.

To add an encoder, write its file (its options included) and add its line to the registry. The
command line, the README's table, `floater info` and the contract tests are made from both.
Importing this package needs no torch; its classes do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.attention_kind import (
    ATTENTION_OPTIONS,
    check_attention_kind,
)
from fairseq_floater.position_encoders.floater_training import check_encoder
from fairseq_floater.position_encoders.options import ADD, COMBINATIONS, Option
from fairseq_floater.position_encoders.registry import (
    BLOCKS,
    DEFAULT_TARGETS,
    ENCODERS,
    TARGETS,
)
from fairseq_floater.position_encoders.registry import POSITION_ENCODERS as POSITION_ENCODERS
from fairseq_floater.position_encoders.registry import encoder_class as encoder_class
from fairseq_floater.position_encoders.sides import POSITION_SIDES, check_sides, has_positions
from fairseq_floater.position_encoders.warp_law import WARP_OPTIONS, WarpLaw, check_warp

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder


def _names(encoders: Iterable[str]) -> str:
    """Join names as English does: "a, b and c"."""
    *first, last = encoders
    return f"{', '.join(first)} and {last}" if first else last


_QKV, _INSIDE, _STAGES = (
    [name for name, default in DEFAULT_TARGETS.items() if default == target]
    for target in ("qkv", "attention", "stage")
)
BASES = ("auto", "keep", "drop")
SHARED_OPTIONS = (
    Option(
        "--position-encoder",
        "floater",
        "where positions come from: " + ", ".join(ENCODERS),
        str,
        tuple(ENCODERS),
    ),
    Option("--position-blocks", "all", "blocks that receive positions", str, BLOCKS),
    POSITION_SIDES,
    Option(
        "--position-target",
        None,
        "how positions enter: added to a block's input (hidden) or to q, k, v (qkv), or, of floater, by "
        "distance inside attention (relative); "
        f"default: qkv for {_names(_QKV)}, hidden for the other signals; {_names(_INSIDE)} act inside "
        f"attention and {_names(_STAGES)} on the stream before a block, and take no target",
        str,
        TARGETS,
    ),
    Option(
        "--position-combine",
        ADD,
        "how a signal of target hidden meets a block's input x: x + p, x times p by channel "
        "(multiply), or both through one linear map that starts as the sum (concat)",
        str,
        COMBINATIONS,
    ),
    Option(
        "--position-base",
        "auto",
        "fairseq's own sinusoid underneath: keep, drop, or as the encoder's paper has it (auto)",
        str,
        BASES,
    ),
    *WARP_OPTIONS,
    *ATTENTION_OPTIONS,
)


def all_options() -> tuple[Option, ...]:
    """Return the shared options, then each encoder's own; some encoders have one in common."""
    own = (o for encoder in POSITION_ENCODERS.values() for o in encoder.options)
    return SHARED_OPTIONS + tuple(dict.fromkeys(own))


def add_args(parser: argparse.ArgumentParser) -> None:
    """Add every encoder's options to fairseq's model options."""
    for option in all_options():
        option.add_to(parser)


def complete(args: Any) -> type[PositionEncoder]:
    """Fill in defaults and check the options, on a Namespace or a DictConfig, in place.

    Returns:
        The class of the encoder that ``args`` names.

    Raises:
        ValueError: a value outside its choices, of another type, or options that exclude each other.
    """
    # The former name, in checkpoints from before the first release.
    if getattr(args, "position_encoder", None) == "rotation":
        args.position_encoder = "rotation_flow"
    for option in all_options():
        value = getattr(args, option.dest, None)
        setattr(args, option.dest, option.checked(option.default if value is None else value))
    encoder = POSITION_ENCODERS[args.position_encoder]
    if args.position_target is None:
        args.position_target = encoder.targets[0]
    if args.position_target not in encoder.targets:
        raise ValueError(
            f"`--position-target` must be {' or '.join(encoder.targets)} with --position-encoder "
            f"{encoder.name}, but is {args.position_target} instead."
        )
    if args.position_base == "keep" and getattr(args, "no_token_positional_embeddings", False):
        raise ValueError(
            "`--position-base` must not be keep with `--no-token-positional-embeddings`, which drops it."
        )
    encoder = encoder_class(args.position_encoder, args.position_target)
    encoder.check_options(encoder_options(args), args.position_target)
    check_encoder(args)
    check_sides(args, encoder)
    _check_combination(args, encoder)
    check_warp(args, encoder, encoder_options(args), POSITION_ENCODERS)
    _check_warp_has_no_base(args)
    check_attention_kind(args, encoder, POSITION_ENCODERS)
    return encoder


def _check_combination(args: Any, encoder: type[PositionEncoder]) -> None:
    if args.position_combine == ADD or (encoder.combines and args.position_target == "hidden"):
        return
    able = ", ".join(name for name, cls in POSITION_ENCODERS.items() if cls.combines)
    raise ValueError(
        f"`--position-combine` must be add with --position-encoder {encoder.name} and "
        f"--position-target {args.position_target}, but is {args.position_combine} instead: only the "
        f"rows of a signal ({able}) of target hidden meet a block's input."
    )


def _check_warp_has_no_base(args: Any) -> None:
    given = [o.name for o in WARP_OPTIONS if getattr(args, o.dest) is not None]
    if given and has_base(args):
        raise ValueError(
            f"`{given[0]}` must come with `--no-token-positional-embeddings` (or "
            "`--position-base drop`): fairseq's own positions underneath would stay as they are."
        )


def has_base(args: Any, side: str | None = None) -> bool:
    """Return whether fairseq's own ``embed_positions`` stands underneath, by complete options.

    Args:
        args: the model's options, complete.
        side: source or target; None: either.
    """
    if side is not None and not has_positions(args, side):
        return False
    if getattr(args, "no_token_positional_embeddings", False) or args.position_base == "drop":
        return False
    encoder = encoder_class(args.position_encoder, args.position_target)
    twice = encoder.is_base and args.position_combine != ADD
    return args.position_base == "keep" or (encoder.keeps_base and not twice)


def trained_limit(args: Any, longest: int) -> tuple[str, int, int] | None:
    """Return the option that sets apart distances beyond those seen in training, if any.

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
    """Return a sentence about :func:`trained_limit`, whose arguments it takes; None without one."""
    limit = trained_limit(args, longest)
    if limit is None:
        return None
    option, value, furthest = limit
    return (
        f"`{option}` is {value}, but training has no distance above {furthest} (sentences of up to "
        f"{longest} tokens); longer ones will meet what was never trained. Pass `{option} {furthest}` "
        "or less."
    )


def foreign_options(args: Any) -> str | None:
    """Return a warning of options that the encoder named by complete ``args`` does not have, or None."""
    read = {*SHARED_OPTIONS, *POSITION_ENCODERS[args.position_encoder].options}
    given = [
        f"`{o.name}`" for o in all_options() if o not in read and getattr(args, o.dest) != o.default
    ]
    if not given:
        return None
    return f"--position-encoder {args.position_encoder} does not read {_names(given)}: no effect."


def encoder_options(args: Any) -> dict[str, Any]:
    """Return the options of the encoder that ``args`` names, by ``dest``."""
    encoder = POSITION_ENCODERS[args.position_encoder]
    return {option.dest: getattr(args, option.dest) for option in encoder.options}
