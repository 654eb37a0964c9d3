"""Which file encodes the position? The one in this folder named after `--position-encoder`.

To add an encoder: write its file (its options included), add its class to ``_ENCODERS`` below and its
name to `encoder_names.py`.
The command line, the README's table, `floater info` and the contract tests read this registry.
"""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_floater.encoder_names import BLOCKS, DEFAULT_TARGETS, TARGETS
from fairseq_floater.position_encoders.base import Option
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.learned import LearnedPositions
from fairseq_floater.position_encoders.none import NoPositions
from fairseq_floater.position_encoders.rnn import RecurrentPositions
from fairseq_floater.position_encoders.rotation_flow import RotationFlowPositions
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.sinusoidal import SinusoidalPositions
from fairseq_floater.position_encoders.transforms import stretch_range

_ENCODERS: tuple[type[PositionSignal], ...] = (
    FloaterPositions,
    SinusoidalPositions,
    LearnedPositions,
    RecurrentPositions,
    RotationFlowPositions,
    NoPositions,
)
POSITION_ENCODERS: dict[str, type[PositionSignal]] = {cls.name: cls for cls in _ENCODERS}
if [cls.name for cls in _ENCODERS] != list(DEFAULT_TARGETS):
    raise ImportError("encoder_names.py must name the classes of `_ENCODERS`, in their order.")

ENCODER_OPTION = Option(
    "--position-encoder",
    "floater",
    "where positions come from: " + ", ".join(POSITION_ENCODERS),
    str,
    tuple(POSITION_ENCODERS),
)
SHARED_OPTIONS = (
    ENCODER_OPTION,
    Option("--position-blocks", "all", "blocks that receive positions", str, BLOCKS),
    Option(
        "--position-target",
        None,
        "how positions enter: added to a block's input (hidden) or to q, k, v (qkv); "
        "default: qkv for floater and rnn, hidden for the others",
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
    """The shared options, then each encoder's own."""
    return SHARED_OPTIONS + tuple(o for cls in _ENCODERS for o in cls.options)


def add_args(parser: argparse.ArgumentParser) -> None:
    """Add every encoder's options to fairseq's model options."""
    for option in all_options():
        option.add_to(parser)


def complete(args: Any) -> None:
    """Fill in defaults and check the options, on a Namespace or a DictConfig, in place.

    Raises:
        ValueError: a value outside its choices, of another type, or options that exclude each other.
    """
    # The former name, in checkpoints of before the first release.
    if getattr(args, "position_encoder", None) == "rotation":
        args.position_encoder = "rotation_flow"
    for option in all_options():
        value = getattr(args, option.dest, None)
        setattr(args, option.dest, option.checked(option.default if value is None else value))
    encoder = POSITION_ENCODERS[args.position_encoder]
    if args.position_target is None:
        args.position_target = DEFAULT_TARGETS[encoder.name]
    encoder.check_options(encoder_options(args), args.position_target)
    _check_stretch(args, encoder)


def _check_stretch(args: Any, encoder: type[PositionSignal]) -> None:
    if stretch_range(args.position_stretch) is None:
        return
    if not encoder.continuous:
        able = ", ".join(cls.name for cls in _ENCODERS if cls.continuous)
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
    """The options of the encoder that ``args`` names, by ``dest``."""
    encoder = POSITION_ENCODERS[args.position_encoder]
    return {option.dest: getattr(args, option.dest) for option in encoder.options}
