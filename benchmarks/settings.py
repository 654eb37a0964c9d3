"""Declare the settings of a benchmark, without torch, so that the command's help is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.position_encoders.options import option_values
from fairseq_floater.position_encoders.registry import encoder_names
from fairseq_floater.position_encoders.shared_options import DECODING_WEIGHTS
from fairseq_floater.transformer.shapes import ARCHITECTURES
from fairseq_floater.verbs import positive

# Parts that apply to every encoder; the others measure position tables and flows.
COMPARED = ("update", "memory", "launches", "generation", "step")
PARTS = (*COMPARED, "solve", "growth")
DTYPES = ("float32", "float16", "bfloat16")
DEVICES = ("cpu", "cuda")

# `--quick` shows in seconds whether everything runs; its numbers mean nothing.
QUICK: dict[str, Any] = {
    "arch": "floater_transformer_tiny",
    "tokens": 128,
    "length": (4, 16),
    "vocabulary": (60, 100),
    "rounds": 2,
    "batch_sizes": (1, 4),
    "steps": 4,
    "step_positions": (4, 9),
    "floor_side": 64,
    "floor_bytes": 2**20,
    "solve_length": 32,
    "growth_lengths": (32, 64, 128),
    "growth_from": 32,
}
# The sizes for a CPU are too small to measure a GPU.
ON_GPU: dict[str, Any] = {"floor_side": 8192, "floor_bytes": 2**30}


def length_range(text: str) -> tuple[int, int]:
    """Parse ``--length LOW:HIGH``."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not 2 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be LOW:HIGH with 2 <= LOW <= HIGH, such as 16:256, but is {text!r}"
        )
    return int(match[1]), int(match[2])


def part_names(text: str) -> tuple[str, ...]:
    """Parse names of ``PARTS`` with commas."""
    parts = tuple(text.split(","))
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(PARTS)}, but is {text!r}")
    return parts


def _option(
    default: Any, meaning: str, default_text: str | None = None, **argparse_options: Any
) -> Any:
    """Declare a setting with a command-line option; ``default_text`` is its default in words."""
    if default_text is None:
        default_text = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    text = f"{meaning} ({default_text})".strip()
    return field(default=default, metadata={"help": text, **argparse_options})


def _number(
    default: Any, meaning: str, default_text: str | None = None, **argparse_options: Any
) -> Any:
    return _option(default, meaning, default_text, type=positive, metavar="N", **argparse_options)


@dataclass(frozen=True)
class Settings:
    """Options of one benchmark; `python -m benchmarks speed --help` says what they mean.

    Attributes:
        length: shortest and longest sentence, tokens with the end symbol.
        steps: exact number of tokens of every translation, end symbol included.
        seed: of parameters, batches, dropout and of the order of turns.
        floor_side, floor_bytes: sizes of the matrices that are multiplied and of the matrix that is
            read, to measure the machine's rates.
        solve_length: positions of the part ``solve``.
        growth_lengths: positions of the part ``growth``; the exponent is fitted from
            ``growth_from`` on.
        model_options: fairseq-train's options of the model.

    Raises:
        UsageError: the settings contradict each other.
    """

    parts: Sequence[str] = _option(
        PARTS,
        f"what to measure, from {', '.join(PARTS)}",
        f"all; with --encoders: {', '.join(COMPARED)}",
        type=part_names,
        metavar="PARTS",
    )
    arch: str = _option(
        "floater_transformer_wmt_en_de",
        "shape of the plugin's models and of fairseq's",
        choices=ARCHITECTURES,
        metavar="A",
    )
    encoders: Sequence[str] = _option(
        (),
        "position encoders to compare, separated by commas, or all",
        "FLOATER with an update interval of 1 and of 8",
        type=encoder_names,
        metavar="NAMES",
    )
    tokens: int = _number(4096, "fairseq's --max-tokens: a batch's longer side, padded")
    length: tuple[int, int] = _option(
        (16, 256), "tokens of a sentence", "16:256", type=length_range, metavar="LOW:HIGH"
    )
    vocabulary: Sequence[int] = _number(
        (8192, 32768), "entries of the joint dictionary; updates use the last number", nargs="+"
    )
    device: str = _option("cpu", "", "cuda if torch sees a GPU", choices=DEVICES)
    dtype: str = _option("float32", "GPU only, except float32", choices=DTYPES)
    threads: int = _number(2, "threads of torch on the CPU")
    rounds: int = _number(24, "turns of each model", "24, or more")
    together: int = _number(3, "models that are in memory at once and take turns with fairseq's")
    batch_sizes: Sequence[int] = _number((1, 16, 64), "translations at once", nargs="+")
    beam: int = _number(4, "beam of the search")
    steps: int = _number(32, "tokens of a translation")
    step_positions: Sequence[int] = _number(
        (32, 512, 1000), "positions where single steps are timed", nargs="+"
    )
    decoding_weights: Sequence[str] = _option(
        ("float32",),
        "weights to translate with, see the model's --decoding-weights",
        nargs="+",
        choices=DECODING_WEIGHTS.choices,
        metavar="W",
    )
    seed: int = _option(1, "", type=int, metavar="N")
    resume: str | None = _option(
        None,
        f"keep the measurements of {', '.join(COMPARED)} in FILE, and do not repeat those already there",
        "none",
        metavar="FILE",
    )
    floor_side: int = 2048
    floor_bytes: int = 2**28
    solve_length: int = 256
    growth_lengths: Sequence[int] = (64, 128, 256, 512, 1024, 2048, 4096)
    growth_from: int = 256
    checkpoint: str | None = _option(
        None, "a trained model, to solve its flows too", "none", metavar="FILE"
    )
    model_options: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.tokens < self.length[1]:
            raise UsageError(
                f"`--tokens` must hold the longest sentence ({self.length[1]} tokens), but is "
                f"{self.tokens}."
            )
        smallest = 4 + max(8, 2 * self.beam)  # fairseq's four symbols, and words to choose from
        if min(self.vocabulary) < smallest:
            raise UsageError(
                f"`--vocabulary` must be at least {smallest}, but is {min(self.vocabulary)}."
            )
        if self.checkpoint is not None and "solve" not in self.parts:
            raise UsageError("`--checkpoint` must come with the part `solve`: `--parts solve`.")
        if self.encoders and "--position-encoder" in option_values(self.model_options):
            raise UsageError(
                "`--position-encoder` must be left out, because --encoders names the encoders."
            )
        if self.dtype != "float32" and self.device == "cpu":
            raise UsageError(f"`--dtype` {self.dtype} needs `--device cuda`.")

    @property
    def step_rounds(self) -> int:
        """Steps that are timed around a position: at least 16, since a step takes only milliseconds."""
        return max(self.rounds, 16)

    @property
    def most_positions(self) -> int:
        """Positions that every contestant is built for: fairseq's own 1,024, or more if needed."""
        return max(
            1024, self.length[1], self.steps + 1, max(self.step_positions) + self.step_rounds + 2
        )
