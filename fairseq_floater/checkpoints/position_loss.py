"""Measure a masked language model by the position of the tokens that it fills in.

Data, blocks and masks are those of fairseq's masked-LM task, as `fairseq-validate` draws them: 15 % of
the tokens of a block, chosen by the seed and the block's number, so that every model of one dictionary
sees the same.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq import tasks
from fairseq.models.roberta import RobertaModel

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.roberta_tasks import (
    batches,
    checked_state,
    lengths_of,
    load_model,
)
from fairseq_floater.errors import UsageError
from fairseq_floater.records import markdown_table

MASKED = 0.15
# What becomes of a chosen token: the shares that stay as they are, and that become a random word.
MASKINGS = {"bert": (0.1, 0.1), "mask": (0.0, 0.0)}
# fairseq's break modes, without "eos", which calls a function that numpy 2 removed.
BREAK_MODES = ("complete", "complete_doc", "none")


@dataclass(frozen=True)
class Bin:
    """Loss over the masked tokens at ``first`` to ``last``; the standard error is that of blocks."""

    first: int
    last: int
    bits: float
    standard_error: float | None
    n: int


@dataclass(frozen=True)
class PositionLoss:
    """Loss of a checkpoint in bits a masked token, by bin and over all positions."""

    checkpoint: str
    data: str
    split: str
    seed: int
    masking: str
    sample_break_mode: str
    tokens_per_sample: int
    blocks: int
    left_out: int
    bins: list[Bin]
    all: Bin

    def format_text(self) -> str:
        rows = []
        for group in (*self.bins, self.all):
            error = "" if group.standard_error is None else f"{group.standard_error:.3f}"
            rows.append((f"{group.first}-{group.last}", f"{group.bits:.3f}", error, f"{group.n:,}"))
        kept, random = MASKINGS[self.masking]
        chosen = f"{1 - kept - random:.0%} `<mask>`, {random:.0%} random, {kept:.0%} kept"
        lines = [
            f"{self.checkpoint} on {self.split} of {self.data}: {self.blocks:,} blocks of at most "
            f"{self.tokens_per_sample} tokens, {MASKED:.0%} of them masked ({chosen}), "
            f"seed {self.seed}",
            *markdown_table(("tokens", "bits a token", "±", "masked tokens"), rows),
        ]
        if self.left_out:
            lines.append(f"{self.left_out:,} lines that are longer than a block were left out.")
        return "\n".join(lines)


def position_loss(
    checkpoint: Path,
    data: Path,
    *,
    bins: Sequence[int],
    tokens_per_sample: int | None = None,
    split: str = "valid",
    seed: int = 1,
    masking: str = "bert",
    sample_break_mode: str = "complete",
    batch_size: int = 32,
) -> PositionLoss:
    """Return the masked-LM loss of a RoBERTa by bin of token position.

    Args:
        checkpoint: of fairseq's RoBERTa or one with a position encoder, trained on or not.
        data: binarised, with dict.txt, of the checkpoint's dictionary.
        bins: where each bin ends: ``[32, 64]`` is tokens 0 to 31 and 32 to 63; ``<s>`` is token 0.
        tokens_per_sample: the longest block in tokens; None: the last of ``bins``.
        masking: one of :data:`MASKINGS`.
        sample_break_mode: fairseq's, one of :data:`BREAK_MODES`.
        batch_size: blocks in a batch; does not change the result but for rounding.

    Raises:
        UsageError: bins that do not grow, blocks that are longer than the model's table.
        CheckpointError: no RoBERTa, data of another dictionary, or a bin that no masked token reaches.
    """
    if list(bins) != sorted(set(bins)) or not bins:
        raise UsageError(f"`--bins` must grow, but is {','.join(map(str, bins))}.")
    length = tokens_per_sample or bins[-1]
    if not (data / f"{split}.idx").is_file():
        raise CheckpointError(f"There is no {data / split}.idx, the binarised split `{split}`.")
    checked_state(checkpoint, data)
    model, task = _model_and_task(checkpoint, data, length, seed, masking, sample_break_mode)
    dataset, blocks = _blocks(task, split, length)
    tokens = _masked_tokens(model, dataset, blocks, batch_size)
    return PositionLoss(
        checkpoint=str(checkpoint),
        data=str(data),
        split=split,
        seed=seed,
        masking=masking,
        sample_break_mode=sample_break_mode,
        tokens_per_sample=length,
        blocks=len(blocks),
        left_out=len(dataset) - len(blocks),
        bins=_filled_bins(tokens, bins, split),
        all=_bin(tokens, 0, length - 1),
    )


def _blocks(task: Any, split: str, length: int) -> tuple[Any, np.ndarray]:
    """Return the dataset of a split, and its blocks of at most ``length`` tokens, shortest first."""
    task.load_dataset(split)
    dataset = task.dataset(split)
    dataset.set_epoch(1)  # as fairseq does before it validates
    lengths = lengths_of(dataset)
    order = np.argsort(lengths, kind="stable")  # little padding
    blocks = order[lengths[order] <= length]
    if not len(blocks):
        raise CheckpointError(
            f"No line of {split} fits into {length} tokens with `<s>`; choose another "
            "--sample-break-mode or --tokens-per-sample."
        )
    return dataset, blocks


def _model_and_task(
    checkpoint: Path, data: Path, length: int, seed: int, masking: str, break_mode: str
) -> tuple[RobertaModel, Any]:
    """Load a model that takes ``length`` tokens, and set fairseq's masked-LM task up."""
    kept, random = MASKINGS[masking]
    options = argparse.Namespace(
        task="masked_lm",
        data=str(data),
        tokens_per_sample=length,
        sample_break_mode=break_mode,
        mask_prob=MASKED,
        leave_unmasked_prob=kept,
        random_token_prob=random,
        seed=seed,
    )
    model, task = load_model(checkpoint, tasks.setup_task(options))
    if length > model.max_positions():
        raise UsageError(
            f"`--tokens-per-sample` (or the last of --bins) must be at most the {model.max_positions()} "
            f"positions of {checkpoint}, but is {length}; warm-start --max-positions makes a model with "
            "more."
        )
    return model, task


class _Tokens(NamedTuple):
    """The masked tokens: loss in bits, position, and number of the block."""

    bits: np.ndarray
    positions: np.ndarray
    blocks: np.ndarray


@torch.no_grad()
def _masked_tokens(
    model: RobertaModel, dataset: Any, blocks: np.ndarray, batch_size: int
) -> _Tokens:
    """Compute the loss of every masked token; ``blocks`` are numbers of ``dataset``'s."""
    padding = model.encoder.dictionary.pad()
    measured = [(np.empty(0), *np.empty((2, 0), dtype=np.int64))]
    for begin, batch in enumerate(batches(dataset, blocks, batch_size, model)):
        target = batch["target"]
        masked = target.ne(padding)
        if not masked.any():
            continue
        logits = model(**batch["net_input"], masked_tokens=masked)[0]
        nats = F.cross_entropy(logits.float(), target[masked], reduction="none")
        rows, columns = (indices.cpu().numpy() for indices in masked.nonzero(as_tuple=True))
        bits = nats.double().cpu().numpy() / math.log(2)
        measured.append((bits, columns, rows + begin * batch_size))
    bits, positions, numbers = (np.concatenate(column) for column in zip(*measured))
    return _Tokens(bits, positions, numbers)


def _filled_bins(tokens: _Tokens, ends: Sequence[int], split: str) -> list[Bin]:
    groups = [_bin(tokens, first, end - 1) for first, end in zip([0, *ends], ends)]
    empty = next((b for b in groups if not b.n), None)
    if empty is not None:
        last = (
            f"the last one is at {tokens.positions.max()}" if len(tokens.bits) else "there is none"
        )
        raise CheckpointError(
            f"No masked token of {split} lies at {empty.first} to {empty.last} ({last}); choose other "
            "--bins, or text with longer lines or another --sample-break-mode."
        )
    return groups


def _bin(tokens: _Tokens, first: int, last: int) -> Bin:
    """Average the losses at ``first`` to ``last``; tokens of one block are no independent draws."""
    inside = (tokens.positions >= first) & (tokens.positions <= last)
    bits, n = tokens.bits[inside], int(inside.sum())
    if not n:
        return Bin(first, last, math.nan, None, 0)
    mean = float(bits.mean())
    _, block = np.unique(tokens.blocks[inside], return_inverse=True)
    residuals = np.bincount(block, weights=bits - mean)
    number = len(residuals)
    if number < 2:
        return Bin(first, last, mean, None, n)
    # Standard error of a ratio: losses and numbers of tokens both vary between blocks.
    error = math.sqrt(number / (number - 1) * float((residuals**2).sum())) / n
    return Bin(first, last, mean, error, n)
