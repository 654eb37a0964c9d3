"""Choose whose tokens have positions: the source's, the target's, or both.

This file needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.options import Option

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder

BOTH = "both"
POSITION_SIDES = Option(
    "--position-sides",
    BOTH,
    "whose tokens have positions; the other side has none, fairseq's sinusoid included (source: a "
    "decoder that knows order by its causal mask alone)",
    str,
    (BOTH, "source", "target"),
)


def has_positions(args: Any, side: str) -> bool:
    """Return whether the tokens of ``side``, source or target, have positions, by complete options."""
    return args.position_sides in (BOTH, side)


def check_sides(args: Any, encoder: type[PositionEncoder]) -> None:
    """Refuse one side alone where no side has positions.

    Args:
        args: the model's options, complete.
        encoder: the class that they name.

    Raises:
        ValueError: --position-encoder none with one side.
    """
    if encoder.acts_on is None and args.position_sides != BOTH:
        raise ValueError(
            f"`--position-sides` must be {BOTH} with --position-encoder {encoder.name}, but is "
            f"{args.position_sides} instead: no side has positions."
        )


def describe_sides(args: Any) -> str:
    """Return a phrase for the log at start, nothing for both sides."""
    return "" if args.position_sides == BOTH else f", {args.position_sides} side only"
