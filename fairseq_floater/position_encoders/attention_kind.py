"""Choose the attention that positions meet: softmax of logits, or linear, which forms none.

This file needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.options import Option

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder

LINEAR = "linear"
COSINE = "cosine"
ATTENTION_OPTIONS = (
    Option(
        "--attention-kind",
        "softmax",
        "self-attention: softmax, or linear, with a state of fixed size in place of cached keys "
        "(for position encoders that need no logits)",
        str,
        ("softmax", LINEAR),
    ),
    Option(
        "--linear-kernel",
        "elu",
        "weight of a key in linear attention: phi(q) phi(k) with phi = elu + 1, or 1 + the cosine of "
        "q and k",
        str,
        ("elu", COSINE),
    ),
    Option(
        "--linear-cross",
        False,
        "linear cross-attention too; then nothing can be aligned (--replace-unk, --print-alignment)",
        bool,
    ),
)


def is_linear(args: Any) -> bool:
    """Return whether self-attention is linear, by complete options."""
    return bool(args.attention_kind == LINEAR)


def check_attention_kind(
    args: Any, encoder: type[PositionEncoder], encoders: Mapping[str, type[PositionEncoder]]
) -> None:
    """Refuse what does not go with the kind of attention.

    Args:
        args: the model's options, complete.
        encoder: the class that they name.
        encoders: all classes, by name.

    Raises:
        ValueError: linear attention with an encoder that needs logits or with
            ``--cross-self-attention``, or its options without it.
    """
    if not is_linear(args):
        for option in ATTENTION_OPTIONS[1:]:
            if getattr(args, option.dest) != option.default:
                raise ValueError(
                    f"`{option.name}` must come with `--attention-kind linear`, but that is "
                    f"{args.attention_kind} instead."
                )
        return
    if encoder.needs_logits:
        able = ", ".join(name for name, cls in encoders.items() if not cls.needs_logits)
        raise ValueError(
            f"`--attention-kind` must be softmax with --position-encoder {encoder.name}, which acts on "
            f"logits, but is linear instead: it forms none, and takes {able}."
        )
    if getattr(args, "cross_self_attention", False):
        raise ValueError(
            "`--cross-self-attention` must be off with `--attention-kind linear`: a state of fixed "
            "size holds either the source's keys or the target's."
        )


def describe_attention(args: Any) -> str:
    """Return a phrase for the log at start, nothing for softmax."""
    if not is_linear(args):
        return ""
    return f", attention: linear, {args.linear_kernel}{', cross too' if args.linear_cross else ''}"


def ignored_dropout(args: Any) -> str | None:
    """Return a warning where linear attention, which has no weights to drop, ignores its dropout."""
    dropout = getattr(args, "attention_dropout", 0.0)
    if not is_linear(args) or not dropout:
        return None
    remains = "nowhere" if args.linear_cross else "in cross-attention only"
    return (
        f"`--attention-dropout` should be 0 with `--attention-kind linear`, which forms no weights to "
        f"drop, but is {dropout}: it acts {remains}."
    )
