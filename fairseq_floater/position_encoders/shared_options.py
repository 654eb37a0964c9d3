"""Declare the options that all position encoders share, and read complete options.

This file needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fairseq_floater.position_encoders.eval_law import EVAL, INTERPOLATE
from fairseq_floater.position_encoders.options import ADD, CONCAT, MULTIPLY, Option, option_values
from fairseq_floater.position_encoders.registry import (
    DEFAULT_TARGETS,
    ENCODERS,
    POSITION_ENCODERS,
    TARGETS,
    YOUR_OWN,
    block_numbers,
    encoder_class,
)
from fairseq_floater.position_encoders.warp_law import WARP_OPTIONS

BOTH = "both"
LINEAR = "linear"
COSINE = "cosine"
OFF, RELATIVE = "off", "relative"


def joined(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


_QKV, _INSIDE, _STAGES = (
    [name for name, default in DEFAULT_TARGETS.items() if default == target]
    for target in ("qkv", "attention", "stage")
)
POSITION_SIDES = Option(
    "--position-sides",
    BOTH,
    "side whose tokens have positions; the other side loses fairseq's sinusoid too (source: the "
    "decoder knows order by its causal mask alone)",
    choices=(BOTH, "source", "target"),
)
FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"
DECODING_WEIGHTS = Option(
    "--decoding-weights",
    FLOAT32,
    "weights of the linear layers (both stacks and the output) in fairseq-generate and fairseq-interactive: "
    "float32, bfloat16, or int8 (CPU only; activations are quantised by their range); no "
    "effect in training and validation",
    choices=(FLOAT32, BFLOAT16, INT8),
)
LINEAR_OPTIONS = (
    Option(
        "--linear-kernel",
        "elu",
        "weight of a key in linear attention: phi(q) phi(k) with phi = elu + 1, or 1 + the cosine of "
        "q and k",
        choices=("elu", COSINE),
    ),
    Option(
        "--linear-cross",
        False,
        "linear cross-attention too; then nothing can be aligned (--replace-unk, --print-alignment)",
        bool,
    ),
)
ATTENTION_OPTIONS = (
    Option(
        "--attention-kind",
        "softmax",
        "self-attention: softmax, or linear, with a state of fixed size in place of cached keys "
        "(for position encoders that need no logits)",
        choices=("softmax", LINEAR),
    ),
    *LINEAR_OPTIONS,
    Option(
        "--attention-log-length",
        0.0,
        "N: multiply all logits of a query that sees n keys by max(ln n, 0.1) / ln N, in self- and "
        "cross-attention (Chiang and Cholak 2022); N: tokens of a training sentence, say; 0: off",
        float,
        above=1,
        or_zero=True,
        why="; with 0 logits stay as they are.",
    ),
)
SHARED_OPTIONS = (
    Option(
        "--position-encoder",
        "floater",
        "where positions come from: " + ", ".join(ENCODERS),
        choices=ENCODERS.keys(),  # those registered later too
        why=f"{YOUR_OWN}.",
    ),
    Option(
        "--position-blocks",
        "all",
        "blocks of each stack that receive positions: all, input (the first), or their numbers from 0, such "
        "as 0,2,4; each stack must have one of these blocks",
    ),
    POSITION_SIDES,
    Option(
        "--position-target",
        None,
        "how positions enter: added to a block's input (hidden) or to q, k, v (qkv), or inside attention by "
        "distance (relative: floater and rotation_flow); "
        f"default: qkv for {joined(_QKV)}, hidden for the other signals; {joined(_INSIDE)} act inside "
        f"attention and {joined(_STAGES)} on the stream before a block, and take no target",
        choices=TARGETS,
    ),
    Option(
        "--position-combine",
        ADD,
        "how a signal of target hidden meets a block's input x: x + p, x times p by channel "
        "(multiply), or both through one linear map that starts as the sum (concat)",
        choices=(ADD, MULTIPLY, CONCAT),
    ),
    Option(
        "--position-base",
        "auto",
        "fairseq's own sinusoid underneath: keep, drop, or as the encoder's paper has it (auto)",
        choices=("auto", "keep", "drop"),
    ),
    Option(
        "--position-cross",
        OFF,
        "whether an encoder of distances also acts in cross-attention (relative): target token i and source "
        "token j have the distance R i - j",
        choices=(OFF, RELATIVE),
    ),
    Option(
        "--position-cross-ratio",
        1.0,
        "R of --position-cross relative, source tokens per target token",
        float,
        above=0,
    ),
    *WARP_OPTIONS,
    Option(
        "--position-separator",
        None,
        "word of both dictionaries that ends a segment, such as a sentence; for --floater-gap and "
        "--position-segments",
    ),
    *ATTENTION_OPTIONS,
    EVAL,
    DECODING_WEIGHTS,
)


def all_options() -> tuple[Option, ...]:
    """Return the shared options, then those of the encoders without duplicates."""
    of_encoders = (o for encoder in POSITION_ENCODERS.values() for o in encoder.options)
    options = tuple(dict.fromkeys([*SHARED_OPTIONS, *of_encoders]))
    for name, count in Counter(option.name for option in options).items():
        if count > 1:
            raise ValueError(f"`{name}` is declared twice; give yours a new name.")
    return options


def foreign_options(encoder: str, words: Iterable[str]) -> dict[str, list[str]]:
    """Return the options in ``words`` that ``encoder`` does not read, each with the encoders that do."""
    owners = {
        name: [n for n, cls in POSITION_ENCODERS.items() if name in {o.name for o in cls.options}]
        for name in option_values(words)
    }
    return {name: readers for name, readers in owners.items() if readers and encoder not in readers}


def encoder_options(args: Any) -> dict[str, Any]:
    """Return the encoder's options in complete ``args``, by ``dest``."""
    encoder = POSITION_ENCODERS[args.position_encoder]
    return {option.dest: getattr(args, option.dest) for option in encoder.options}


def has_positions(args: Any, side: str) -> bool:
    """Return whether, in complete options, the tokens of ``side`` (source or target) have positions."""
    return args.position_sides in (BOTH, side)


def has_base(args: Any, side: str | None = None) -> bool:
    """Return whether, in complete options, fairseq's ``embed_positions`` stays underneath.

    Args:
        args: the model's options, complete.
        side: source or target; None: either.
    """
    if side is not None and not has_positions(args, side):
        return False
    if getattr(args, "no_token_positional_embeddings", False) or args.position_base == "drop":
        return False
    base = encoder_class(args.position_encoder, args.position_target).base
    # An encoder may itself be the base. fairseq then keeps it only if its rows are fairseq's, are added,
    # enter the first block, and are not moved in evaluation. Else positions would count twice.
    numbers = block_numbers(args.position_blocks)
    adds = args.position_combine == ADD and (numbers is None or 0 in numbers)
    moves = args.position_target == "hidden" and args.position_eval.startswith(INTERPOLATE)
    begins_as_sinusoid = args.floater_start == "sinusoid"
    kept = (base == "kept" and not begins_as_sinusoid) or (
        base == "itself" and adds and not args.position_segments and not moves
    )
    return args.position_base == "keep" or kept
