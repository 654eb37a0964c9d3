"""Read the position tables that a checkpoint's blocks receive, without any data.

Letters: N positions, C channels, T the longest training sentence in tokens, end symbol included.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.checkpoints.dictionaries import (
    complete_languages,
    longest_sentence,
    task_options_of,
)
from fairseq_floater.checkpoints.families import (
    LANGUAGE_MODEL,
    ROBERTA,
    STACKS,
    architecture,
    family_of,
)
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.transformer.stack_positions import owned_parts

# The name here of fairseq's own `embed_positions`, which is added to the input of block 1.
BASE = "base"
# Rows to read if the trained length is unknown; otherwise three times that length.
DEFAULT_LENGTH = 128


@dataclass
class BlockStream:
    """One stream of positions in one block of a stack (encoder, decoder); ``trained`` is T, if known."""

    stack: str
    block: int  # from 1
    stream: str
    trained: int | None

    @property
    def name(self) -> str:
        return f"{self.stack}, block {self.block}, {self.stream}"

    def location(self) -> dict[str, Any]:
        return {"stack": self.stack, "block": self.block, "stream": self.stream}


@dataclass
class PositionTable(BlockStream):
    """The rows [N, C] of a stream that a block receives."""

    rows: Tensor

    @property
    def has_past(self) -> bool:
        return self.trained is not None and self.trained < len(self.rows)

    @property
    def known(self) -> Tensor:
        """Return the rows up to T: [min(T, N), C]; all rows if T is unknown."""
        return self.rows[: self.trained]

    def measure(self) -> dict[str, Any]:
        """Return norms at several lengths, and the distances between neighbouring rows.

        ``norms`` at 1/2, 1, 2 and 3 times T (N if T is unknown): the mean over the T / 8 rows
        before that place, None past the last row. ``up_to_T``, ``past_T``: the smallest distance and
        the largest cosine between neighbours, and the median distance.
        """
        unit, norms = self.trained or len(self.rows), self.rows.norm(dim=1)
        window = max(1, unit // 8)
        ends = {"T/2": -(-unit // 2), "T": unit, "2T": 2 * unit, "3T": 3 * unit}
        lengths = {
            name: float(norms[end - window : end].mean()) if end <= len(norms) else None
            for name, end in ends.items()
        }
        steps = self.rows.diff(dim=0).norm(dim=1)  # [N - 1]
        cosines = F.cosine_similarity(self.rows[1:], self.rows[:-1], dim=1)

        def nearest(part: slice) -> dict[str, float] | None:
            near, cosine = steps[part], cosines[part]
            if not len(near):
                return None
            extremes = {"distance": float(near.min()), "cosine": float(cosine.max())}
            return {**extremes, "median_distance": float(near.median())}

        return {
            **self.location(),
            "positions": len(norms),
            "norms": lengths,
            "up_to_T": nearest(slice(unit - 1)),
            "past_T": nearest(slice(unit - 1, None)),
        }


def trained_lengths(
    given: int | None, data: str | None, state: dict[str, Any], args: argparse.Namespace
) -> dict[str, int | None]:
    """Return T by side: as given, or the longest training sentence that the model could take.

    For RoBERTas and language models it is the length of their samples.
    """
    lengths: dict[str, int | None] = {"source": given, "target": given}
    if given is not None:
        return lengths
    family, sample = family_of(architecture(args)), task_options_of(state).get("tokens_per_sample")
    if family is ROBERTA:
        return {"source": sample or args.max_positions}
    if family is LANGUAGE_MODEL:
        return {"target": sample}
    if data is None:
        return lengths
    complete_languages(args, state, data)
    for side, stack in zip(lengths, STACKS):
        longest = longest_sentence(data, stack, args)
        if longest is None:
            pair = f"{args.source_lang}-{args.target_lang}"
            raise ValueError(f"`--data` must hold training sentences {pair}, but {data} does not.")
        lengths[side] = min(longest, getattr(args, f"max_{side}_positions"))
    return lengths


@torch.no_grad()
def read_tables(
    stack: Any, name: str, length: int | None, trained: dict[str, int | None], notes: list[str]
) -> list[PositionTable]:
    """Return every position table of a stack, fairseq's own first; some may have fewer rows than asked for.

    Args:
        name: encoder or decoder.
        trained: T by side, if known.
        notes: a note on each shorter table is appended.
    """
    tables = []
    for attribute, source in stack.named_children():
        if isinstance(source, PositionSignal):
            parts = owned_parts(stack, attribute)
            side, streams = source.spec.side, source.spec.streams
            numbers = [part.block_index + 1 for part in parts]
        elif attribute == "embed_positions":
            side = "source" if name == "encoder" else "target"
            parts, streams, numbers = [], (BASE,), [1]
        else:
            continue
        if not numbers:
            continue
        wanted = length or 3 * (trained[side] or 0) or DEFAULT_LENGTH
        count = min(wanted, source.max_positions)
        rows = _rows(source, parts, count, stack.padding_idx)
        tables += [
            PositionTable(name, number, stream, trained[side], rows[:, i, j])
            for j, number in enumerate(numbers)
            for i, stream in enumerate(streams)
        ]
        if len(rows) < wanted:
            reason = "the flow is not finite past" if len(rows) < count else "the table ends after"
            lengths = f"{len(rows)} of {wanted} positions"
            notes.append(f"{name}, {', '.join(streams)}: {reason} {lengths}")
    return tables


def _rows(source: Any, parts: Sequence[Any], count: int, padding_idx: int) -> Tensor:
    """Compute rows 0 .. N - 1 as the stack reads them, [N, S, L, C]; fewer if a flow does not stay finite.

    They are float64, because the norm of a very large row would overflow float32.
    """
    if not isinstance(source, PositionSignal):
        # Any word will do: fairseq numbers the tokens that are not padding.
        rows: Tensor = source(torch.full((1, count), padding_idx + 1))
        return rows.view(count, 1, 1, -1).double()
    try:
        return source(count, parts, torch.float32).double()
    except FloatingPointError as error:
        if count < 4:
            raise CheckpointError(str(error)) from None
        return _rows(source, parts, count * 7 // 8, padding_idx)
