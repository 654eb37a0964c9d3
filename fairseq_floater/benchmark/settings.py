"""Declare the settings of a benchmark, without torch, so that the command's help is quick."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_floater.errors import UsageError

PARTS = ("update", "generation", "memory", "solve", "growth")
DTYPES = ("float32", "float16", "bfloat16")
DEVICES = ("cpu", "cuda")

# `--quick` shows in seconds whether everything runs; its numbers mean nothing.
QUICK: dict[str, Any] = {
    "arch": "floater_transformer_tiny",
    "tokens": 128,
    "length": (4, 16),
    "vocabulary": 100,
    "rounds": 2,
    "batch_sizes": (1, 4),
    "steps": 4,
    "solve_length": 32,
    "growth_lengths": (32, 64, 128),
    "growth_from": 32,
}


@dataclass(frozen=True)
class Settings:
    """Options of one benchmark.

    Attributes:
        parts: what to measure, of :data:`PARTS`.
        arch: one of the plugin's architectures; the baseline is fairseq's of the same shape.
        tokens: the most of a batch's longer side, padding included: fairseq's ``--max-tokens``.
        length: shortest and longest sentence, tokens with the end symbol.
        vocabulary: entries of the one dictionary.
        device, dtype: of :data:`DEVICES`, :data:`DTYPES`.
        threads: torch's, on the CPU.
        rounds: in each of which every contestant has one turn.
        batch_sizes: numbers of sentences translated at once.
        beam, steps: of the search; every sentence gets exactly ``steps`` tokens, end symbol included.
        seed: of parameters, batches, dropout and of the order of turns.
        solve_length: positions of the part ``solve``.
        growth_lengths: positions of the part ``growth``; the exponent is fitted from
            ``growth_from`` on.
        checkpoint: a model of the plugin whose flows the part ``solve`` tries as well.
        model_options: fairseq-train's, of the model.

    Raises:
        UsageError: settings that do not go together.
    """

    parts: Sequence[str] = PARTS
    arch: str = "floater_transformer_wmt_en_de"
    tokens: int = 4096
    length: tuple[int, int] = (16, 256)
    vocabulary: int = 32768
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 2
    rounds: int = 24
    batch_sizes: Sequence[int] = (1, 64)
    beam: int = 4
    steps: int = 32
    seed: int = 1
    solve_length: int = 256
    growth_lengths: Sequence[int] = (64, 128, 256, 512, 1024, 2048, 4096)
    growth_from: int = 256
    checkpoint: str | None = None
    model_options: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.tokens < self.length[1]:
            raise UsageError(
                f"`--tokens` must hold the longest sentence ({self.length[1]} tokens), but is "
                f"{self.tokens}."
            )
        smallest = 4 + max(8, 2 * self.beam)  # fairseq's four symbols, and words to choose from
        if self.vocabulary < smallest:
            raise UsageError(
                f"`--vocabulary` must be at least {smallest}, but is {self.vocabulary}."
            )
        if self.dtype != "float32" and self.device == "cpu":
            raise UsageError(f"`--dtype` {self.dtype} needs `--device cuda`.")

    @property
    def most_positions(self) -> int:
        """Positions that every contestant is built for: fairseq's own 1,024, or what is needed."""
        return max(1024, self.length[1], self.steps + 1)


def length_range(text: str) -> tuple[int, int]:
    """Parse ``--length LOW:HIGH``."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not 2 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be LOW:HIGH with 2 <= LOW <= HIGH, such as 16:256, but is {text!r}"
        )
    return int(match[1]), int(match[2])
