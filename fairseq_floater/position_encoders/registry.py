"""List the position encoders, one line each.

This file needs no torch: the file of an encoder is imported when its class is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder


class Entry(NamedTuple):
    """Name an encoder's class, and its default ``--position-target`` (the first it allows)."""

    path: str
    target: str


#: ``--position-encoder`` -> its class, as ``file.Class`` in this folder
ENCODERS = {
    "floater": Entry("floater.FloaterPositions", "qkv"),
    "sinusoidal": Entry("sinusoidal.SinusoidalPositions", "hidden"),
    "learned": Entry("learned.LearnedPositions", "hidden"),
    "rnn": Entry("rnn.RecurrentPositions", "qkv"),
    "rotation_flow": Entry("rotation_flow.RotationFlowPositions", "hidden"),
    "rope": Entry("rope.RopePositions", "attention"),
    "xpos": Entry("xpos.XposPositions", "attention"),
    "t5": Entry("t5.T5Positions", "attention"),
    "alibi": Entry("alibi.AlibiPositions", "attention"),
    "kerple": Entry("kerple.KerplePositions", "attention"),
    "sandwich": Entry("sandwich.SandwichPositions", "attention"),
    "fire": Entry("fire.FirePositions", "attention"),
    "shaw": Entry("shaw.ShawPositions", "attention"),
    "nezha": Entry("nezha.NezhaPositions", "attention"),
    "xl": Entry("xl.XlPositions", "attention"),
    "tener": Entry("tener.TenerPositions", "attention"),
    "deberta": Entry("deberta.DebertaPositions", "attention"),
    "tupe": Entry("tupe.TupePositions", "attention"),
    "cope": Entry("cope.CopePositions", "attention"),
    "forget": Entry("forget.ForgetPositions", "attention"),
    "conv": Entry("conv.ConvolutionPositions", "stage"),
    "token-rnn": Entry("token_rnn.TokenRecurrence", "stage"),
    "complex": Entry("complex.ComplexOrderEmbedding", "stage"),
    "none": Entry("none.NoPositions", "hidden"),
}
#: an encoder's class under another target, where that makes it another kind
VARIANTS = {
    ("floater", "relative"): "relative_flow.RelativeFlowPositions",
    ("rotation_flow", "relative"): "relative_flow.RelativeRotationPositions",
}
DEFAULT_TARGETS = {name: entry.target for name, entry in ENCODERS.items()}
BLOCKS = ("all", "input")
TARGETS = ("qkv", "hidden", "attention", "stage", "relative")


class _Classes(Mapping[str, "type[PositionEncoder]"]):
    """Map names to the encoders' classes, each imported when it is looked up."""

    def __getitem__(self, name: str) -> type[PositionEncoder]:
        return _imported(ENCODERS[name].path)

    def __iter__(self) -> Iterator[str]:
        return iter(ENCODERS)

    def __len__(self) -> int:
        return len(ENCODERS)


POSITION_ENCODERS = _Classes()


def _imported(path: str) -> type[PositionEncoder]:
    file, _, class_name = path.partition(".")
    module = import_module(f"fairseq_floater.position_encoders.{file}")
    encoder: type[PositionEncoder] = getattr(module, class_name)
    return encoder


def encoder_class(name: str, target: str) -> type[PositionEncoder]:
    """Return the class of encoder ``name`` for ``--position-target`` ``target``."""
    variant = VARIANTS.get((name, target))
    return POSITION_ENCODERS[name] if variant is None else _imported(variant)


def encoder_names(text: str) -> tuple[str, ...]:
    """Parse an option that names encoders, ``NAME,NAME`` or ``all``."""
    names = tuple(ENCODERS) if text == "all" else tuple(filter(None, text.split(",")))
    unknown = [name for name in names if name not in ENCODERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"must be all, or some of {', '.join(ENCODERS)} with commas, but is {text!r}"
        )
    return names
