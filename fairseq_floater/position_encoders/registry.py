"""List the position encoders, one line each.

This file needs no torch: an encoder's file is imported when its class is needed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder

_Class = TypeVar("_Class", bound="type[PositionEncoder]")


class Entry(NamedTuple):
    """Hold an encoder's class or its path, and its default ``--position-target`` (the first it allows)."""

    path: str | type[PositionEncoder]  # a path is `file.Class` in this folder
    target: str


#: ``--position-encoder`` -> its class
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
#: an encoder's class for a target that makes it another kind of encoder
VARIANTS = {
    ("floater", "relative"): "relative_flow.RelativeFlowPositions",
    ("rotation_flow", "relative"): "relative_flow.RelativeRotationPositions",
}
DEFAULT_TARGETS = {name: entry.target for name, entry in ENCODERS.items()}
#: the end of a message on an unknown encoder
YOUR_OWN = "; FLOATER_USER_DIR adds those that your code registers"
#: words for ``--position-blocks``, which takes numbers too
ALL_BLOCKS, INPUT_BLOCK = "all", "input"
TARGETS = ("qkv", "hidden", "attention", "stage", "relative")


class _Classes(Mapping[str, "type[PositionEncoder]"]):
    """Map names to the encoders' classes; a look-up imports the class."""

    def __getitem__(self, name: str) -> type[PositionEncoder]:
        return _imported(ENCODERS[name].path)

    def __iter__(self) -> Iterator[str]:
        return iter(ENCODERS)

    def __len__(self) -> int:
        return len(ENCODERS)


POSITION_ENCODERS = _Classes()


def register_position_encoder(encoder: _Class) -> _Class:
    """Add an encoder of your own package under its ``name``; a decorator of its class.

    Raises:
        ValueError: another encoder has that name, or scripts read it as something else.
    """
    known = ENCODERS[encoder.name].path if encoder.name in ENCODERS else encoder
    if isinstance(known, str):
        raise ValueError(f"`name` must be new, but {encoder.name!r} is an encoder of this package.")
    if _file_and_class(known) != _file_and_class(encoder):  # a notebook may register a class again
        raise ValueError(f"`name` must be new, but {encoder.name!r} is that of {known} too.")
    if not re.fullmatch(r"(?!(all|plain|roberta)$)\w[\w-]*", encoder.name, re.ASCII):
        raise ValueError(
            "`name` must have letters, digits, _ and - only, and not be all, plain or roberta, but is "
            f"{encoder.name!r} instead."
        )
    ENCODERS[encoder.name] = Entry(encoder, encoder.targets[0])
    DEFAULT_TARGETS[encoder.name] = encoder.targets[0]
    return encoder


def _file_and_class(encoder: type[PositionEncoder]) -> str:
    return f"{encoder.__module__.rpartition('.')[2]}.{encoder.__qualname__}"


def _imported(path: str | type[PositionEncoder]) -> type[PositionEncoder]:
    if not isinstance(path, str):
        return path
    file, _, class_name = path.partition(".")
    module = import_module(f"fairseq_floater.position_encoders.{file}")
    return getattr(module, class_name)


def encoder_class(name: str, target: str) -> type[PositionEncoder]:
    """Return the class of encoder ``name`` for ``--position-target`` ``target``."""
    variant = VARIANTS.get((name, target))
    return POSITION_ENCODERS[name] if variant is None else _imported(variant)


def layer_numbers(text: str) -> list[int] | None:
    """Return the layer numbers in ``text``, such as ``0,2,4``; None for any other text."""
    fits = re.fullmatch(r"\d{1,4}(,\d{1,4})*", text, re.ASCII)
    return [int(number) for number in text.split(",")] if fits else None


def block_numbers(text: str) -> tuple[int, ...] | None:
    """Return the blocks that ``--position-blocks`` names, numbered from 0 and sorted; None: all.

    Raises:
        ValueError: the text is neither a valid word nor numbers.
    """
    if text == ALL_BLOCKS:
        return None
    numbers = layer_numbers("0" if text == INPUT_BLOCK else text)
    if numbers is None:
        raise ValueError(
            "`--position-blocks` must be all, input, or numbers with commas between them, such as 0,2,4, "
            f"but is {text!r} instead."
        )
    return tuple(sorted({*numbers}))


def named_blocks(text: str) -> str:
    """Return the normal form of ``--position-blocks``: ``0`` is ``input``, ``2,0,2`` is ``0,2``."""
    numbers = block_numbers(text)
    if numbers is None or numbers == (0,):
        return ALL_BLOCKS if numbers is None else INPUT_BLOCK
    return ",".join(map(str, numbers))


def check_depth(numbers: tuple[int, ...] | None, depth: int) -> None:
    """Raise ValueError if a number of :func:`block_numbers` exceeds the deepest stack's ``depth``."""
    if numbers is not None and numbers[-1] >= depth:
        raise ValueError(
            f"`--position-blocks` must name blocks from 0 to {depth - 1}, as many as the deepest stack with "
            f"positions has, but names {numbers[-1]}."
        )


def encoder_names(text: str) -> tuple[str, ...]:
    """Parse an option that names encoders, ``NAME,NAME`` or ``all``."""
    names = tuple(ENCODERS) if text == "all" else tuple(filter(None, text.split(",")))
    unknown = [name for name in names if name not in ENCODERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"must be all, or some of {', '.join(ENCODERS)} with commas, but is {text!r}{YOUR_OWN}"
        )
    return names
