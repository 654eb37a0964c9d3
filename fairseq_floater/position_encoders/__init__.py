"""Say where positions come from: each file here named in `registry.py` is one encoder.

To add an encoder, write its file (its options included) and add its line to the registry. The
command line, the README's table, `floater info` and the contract tests are made from both.
Importing this package needs no torch; its classes do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.options import Option, stretch_range
from fairseq_floater.position_encoders.registry import (
    BLOCKS,
    DEFAULT_TARGETS,
    ENCODERS,
    TARGETS,
)
from fairseq_floater.position_encoders.registry import POSITION_ENCODERS as POSITION_ENCODERS

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder


def _names(encoders: Iterable[str]) -> str:
    """Join names as English does: "a, b and c"."""
    *first, last = encoders
    return f"{', '.join(first)} and {last}" if first else last


_QKV = (name for name, target in DEFAULT_TARGETS.items() if target == "qkv")
SHARED_OPTIONS = (
    Option(
        "--position-encoder",
        "floater",
        "where positions come from: " + ", ".join(ENCODERS),
        str,
        tuple(ENCODERS),
    ),
    Option("--position-blocks", "all", "blocks that receive positions", str, BLOCKS),
    Option(
        "--position-target",
        None,
        "how positions enter: added to a block's input (hidden) or to q, k, v (qkv); "
        f"default: qkv for {_names(_QKV)}, hidden for the others",
        str,
        TARGETS,
    ),
    Option(
        "--position-stretch",
        None,
        "LOW:HIGH; in training, a sentence's positions are i times a factor drawn from this range "
        "(0.5:2.5, say), so that positions past the trained length are met",
        str,
    ),
)


def all_options() -> tuple[Option, ...]:
    """Return the shared options, then each encoder's own."""
    return SHARED_OPTIONS + tuple(o for cls in POSITION_ENCODERS.values() for o in cls.options)


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
    encoder.check_options(encoder_options(args), args.position_target)
    _check_stretch(args, encoder)
    return encoder


def _check_stretch(args: Any, encoder: type[PositionEncoder]) -> None:
    if stretch_range(args.position_stretch) is None:
        return
    if not encoder.continuous:
        able = ", ".join(name for name, cls in POSITION_ENCODERS.items() if cls.continuous)
        raise ValueError(
            f"`--position-stretch` needs positions between two tokens ({able}), but "
            f"--position-encoder is {encoder.name} instead."
        )
    if encoder.keeps_base and not getattr(args, "no_token_positional_embeddings", False):
        raise ValueError(
            "`--position-stretch` must come with `--no-token-positional-embeddings`: fairseq's own "
            "sinusoid underneath would stay unstretched."
        )


def encoder_options(args: Any) -> dict[str, Any]:
    """Return the options of the encoder that ``args`` names, by ``dest``."""
    encoder = POSITION_ENCODERS[args.position_encoder]
    return {option.dest: getattr(args, option.dest) for option in encoder.options}
