"""Make the table of positions of a RoBERTa donor as long as the model that starts from it."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.position_encoders import has_base

TILE, LAST = WAYS = ("tile", "last")
TABLE = "encoder.sentence_encoder.embed_positions.weight"
DEFAULT_POSITIONS = 512  # fairseq's, of a RoBERTa whose options do not say


def fit_length(
    state: dict[str, Tensor],
    args: argparse.Namespace,
    donor_args: argparse.Namespace,
    *,
    first_row: int,
    way: str | None,
    donor: Any,
) -> None:
    """Settle ``args.max_positions``, and lengthen the table in ``state`` to it; both are changed in place.

    Args:
        state: the donor's tensors under today's names.
        args: the new model's options; without ``max_positions`` it gets the donor's.
        donor_args: the donor's.
        first_row: of the table that belongs to a token (those before it belong to padding).
        way: ``tile`` repeats the donor's rows, ``last`` its last one, ``None`` refuses.
        donor: its name in messages.

    Raises:
        CheckpointError: fewer positions than the donor has, or more without a ``way``; a ``way``
            where one of the two models has no table.
    """
    table = state.get(TABLE)
    # `learned` copies the table's rows into its own.
    if table is None or not (has_base(args) or args.position_encoder == "learned"):
        donor_length = getattr(donor_args, "max_positions", None) or DEFAULT_POSITIONS
        args.max_positions = getattr(args, "max_positions", None) or donor_length
        if way is not None:
            model = donor if table is None else "the model that starts"
            raise CheckpointError(
                f"`--extend` must not be given: {model} has no learned table of positions to lengthen."
            )
        return
    rows = len(table) - first_row
    wanted = args.max_positions = getattr(args, "max_positions", None) or rows
    if wanted < rows:
        raise CheckpointError(
            f"`--max-positions` must be at least {rows}, which {donor} has, but is {wanted} instead."
        )
    if wanted > rows and way is None:
        raise CheckpointError(
            f"`--max-positions` must be {rows}, which {donor} has, but is {wanted} instead; with "
            f"`--extend {TILE}` or `--extend {LAST}` the donor's rows, or its last one, are repeated."
        )
    if wanted == rows and way is not None:
        raise CheckpointError(
            f"`--extend` must come with `--max-positions` above {rows}, which {donor} has."
        )
    places = torch.arange(wanted)
    places = places % rows if way == TILE else places.clamp(max=rows - 1)
    state[TABLE] = torch.cat([table[:first_row], table[first_row:][places]])
