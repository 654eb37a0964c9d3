"""Measure a model's loss by the position of the tokens that it predicts.

A translation model predicts every token of a target, end symbol included, from the source and the tokens
before it (teacher forcing). A language model predicts every token of a block from those before it.

A masked language model fills in 15 % of the tokens of a block. The masks depend on the seed and the block's
number, so that all models with one dictionary see the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.models.roberta import RobertaModel

from fairseq_floater.checkpoints.families import (
    LANGUAGE_MODEL,
    TRANSLATION,
    architecture,
    family_of,
)
from fairseq_floater.checkpoints.predicted_text import (
    MASKED,
    MASKINGS,
    load_blocks,
    load_sentences,
)
from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint, model_args
from fairseq_floater.checkpoints.roberta_tasks import batches
from fairseq_floater.errors import UsageError
from fairseq_floater.position_encoders.eval_law import NONE
from fairseq_floater.records import markdown_table


@dataclass(frozen=True)
class Bin:
    """Loss over the tokens at ``first`` to ``last``, and how often the right word has the largest logit.

    The standard error of the loss is over blocks or sentences.
    """

    first: int
    last: int
    bits: float
    standard_error: float | None
    n: int
    accuracy: float


@dataclass(frozen=True)
class PositionLoss:
    """Loss of a checkpoint in bits a token, by bin and over all positions.

    For a translation model ``blocks`` counts sentences, and break mode and block length are None. Seed and
    masking are None for all but a RoBERTa.
    """

    checkpoint: str
    data: str
    split: str
    blocks: int
    left_out: int
    bins: list[Bin]
    all: Bin
    position_eval: str | None = None
    seed: int | None = None
    masking: str | None = None
    sample_break_mode: str | None = None
    tokens_per_sample: int | None = None

    def format_text(self) -> str:
        rows = []
        for group in (*self.bins, self.all):
            error = "" if group.standard_error is None else f"{group.standard_error:.3f}"
            numbers = (f"{group.bits:.3f}", error, f"{group.accuracy:.3f}", f"{group.n:,}")
            rows.append((f"{group.first}-{group.last}", *numbers))
        kind = "target" if self.masking is None else "masked"
        limit = "a block" if self.tokens_per_sample else "the model takes"
        lines = [
            f"{self.checkpoint} on {self.split} of {self.data}: {self._measured()}",
            *markdown_table(("tokens", "bits a token", "±", "accuracy", f"{kind} tokens"), rows),
        ]
        if rest := self.all.n - sum(group.n for group in self.bins):
            lines.append(f"Only the last row counts the {rest:,} tokens past the last bin.")
        if self.left_out:
            lines.append(f"{self.left_out:,} lines that are longer than {limit} were left out.")
        return "\n".join(lines)

    def _measured(self) -> str:
        law = f", --position-eval {self.position_eval}" if self.position_eval else ""
        if self.tokens_per_sample is None:
            return f"{self.blocks:,} sentences, teacher-forced{law}"
        blocks = f"{self.blocks:,} blocks of at most {self.tokens_per_sample} tokens"
        if self.masking is None:
            return f"{blocks}{law}"
        kept, random = MASKINGS[self.masking]
        chosen = f"{1 - kept - random:.0%} `<mask>`, {random:.0%} random, {kept:.0%} kept"
        return f"{blocks}, {MASKED:.0%} of them masked ({chosen}), seed {self.seed}{law}"


def position_loss(
    checkpoint: Path,
    data: Path,
    *,
    bins: Sequence[int],
    tokens_per_sample: int | None = None,
    split: str = "valid",
    seed: int = 1,
    masking: str = "bert",
    sample_break_mode: str | None = None,
    batch_size: int = 32,
    position_eval: str | None = None,
) -> PositionLoss:
    """Return the loss of a translation model, a language model or a RoBERTa by bin of token position.

    Args:
        checkpoint: of a model of fairseq or of this package.
        data: a folder of binarised data with the checkpoint's dictionary (dict.txt or dict.<lang>.txt).
        bins: where each bin ends: ``[32, 64]`` is tokens 0 to 31 and 32 to 63. Token 0 is the first
            token of a target or of a language model's block, or the ``<s>`` at its start.
        tokens_per_sample: longest block in tokens; None: the last of ``bins``.
        seed: of a RoBERTa's masks.
        masking: of a RoBERTa, one of :data:`MASKINGS`.
        sample_break_mode: one of :data:`BREAK_MODES`; None: complete for a RoBERTa, none for a language
            model.
        batch_size: blocks in a batch; changes the result only by rounding.
        position_eval: ``--position-eval`` of a model of this package; None: the checkpoint's.

    Raises:
        UsageError: the bins do not increase, or the blocks are longer than the model's table.
        CheckpointError: another kind of model, another dictionary, or a bin without a token.
    """
    if list(bins) != sorted(set(bins)) or not bins:
        raise UsageError(f"`--bins` must be rising numbers, but is {','.join(map(str, bins))}.")
    state = load_checkpoint(checkpoint)
    args = model_args(state, checkpoint)
    if position_eval and not hasattr(args, "position_encoder"):
        raise UsageError(
            f"`--position-eval` is for models of this package; {checkpoint} is fairseq's."
        )
    args.position_eval = position_eval or getattr(args, "position_eval", NONE)
    family = family_of(architecture(args))
    options: dict[str, Any] = {}
    if family is TRANSLATION:
        if tokens_per_sample or sample_break_mode:
            raise UsageError(
                "`--tokens-per-sample` and `--sample-break-mode` must be left out for a translation model."
            )
        model, dataset, blocks = load_sentences(state, args, checkpoint, data, split)
        longest = int(dataset.tgt_sizes[blocks].max())
    else:
        longest = tokens_per_sample or bins[-1]
        mode = sample_break_mode or ("none" if family is LANGUAGE_MODEL else "complete")
        options = {"tokens_per_sample": longest, "sample_break_mode": mode}
        if family is not LANGUAGE_MODEL:
            options |= {"seed": seed, "masking": masking}
        model, dataset, blocks = load_blocks(state, args, checkpoint, data, split, options)
    tokens = _predicted_tokens(model, dataset, blocks, batch_size)
    return PositionLoss(
        checkpoint=str(checkpoint),
        data=str(data),
        split=split,
        blocks=len(blocks),
        left_out=len(dataset) - len(blocks),
        bins=_filled_bins(tokens, bins, split),
        all=_bin(tokens, 0, longest - 1),
        position_eval=position_eval,
        **options,
    )


class _Tokens(NamedTuple):
    """For each predicted token: loss in bits, whether it is the most probable, position, and block."""

    bits: np.ndarray
    hits: np.ndarray
    positions: np.ndarray
    blocks: np.ndarray


@torch.no_grad()
def _predicted_tokens(model: Any, dataset: Any, blocks: np.ndarray, batch_size: int) -> _Tokens:
    """Compute the loss of every token to predict; ``blocks`` holds indices of ``dataset``."""
    reader = model.encoder if isinstance(model, RobertaModel) else model.decoder
    padding = reader.dictionary.pad()
    measured = [(np.empty(0), np.empty(0, dtype=bool), *np.empty((2, 0), dtype=np.int64))]
    for begin, batch in enumerate(batches(dataset, blocks, batch_size, model)):
        target = batch["target"]
        is_predicted = target.ne(padding)
        if getattr(dataset, "add_bos_token", False):
            is_predicted[:, 0] = False  # the target of `<s>` is itself
        if not is_predicted.any():
            continue
        if isinstance(model, RobertaModel):
            logits = model(**batch["net_input"], masked_tokens=is_predicted)[0]
            log_probs = F.log_softmax(logits.float(), dim=-1)
        else:
            output = model(**batch["net_input"])
            # If it were given the targets, an adaptive softmax would leave out other words.
            log_probs = model.get_normalized_probs(output, log_probs=True)[is_predicted]
        words = target[is_predicted]
        nats = F.nll_loss(log_probs, words, reduction="none").double().cpu().numpy()
        hits = log_probs.argmax(-1).eq(words).cpu().numpy()
        rows, columns = (indices.cpu().numpy() for indices in is_predicted.nonzero(as_tuple=True))
        measured.append((nats / math.log(2), hits, columns, rows + begin * batch_size))
    return _Tokens(*(np.concatenate(column) for column in zip(*measured)))


def _filled_bins(tokens: _Tokens, ends: Sequence[int], split: str) -> list[Bin]:
    groups = [_bin(tokens, first, end - 1) for first, end in zip([0, *ends], ends)]
    empty = next((b for b in groups if not b.n), None)
    if empty is not None:
        last = (
            f"the last one is at {tokens.positions.max()}" if len(tokens.bits) else "there is none"
        )
        raise CheckpointError(
            f"{split} has no token to predict at {empty.first} to {empty.last} ({last}); choose other "
            "--bins, or text with longer lines or another --sample-break-mode."
        )
    return groups


def _bin(tokens: _Tokens, first: int, last: int) -> Bin:
    """Average the losses at ``first`` to ``last``; the tokens of a block are not independent."""
    inside = (tokens.positions >= first) & (tokens.positions <= last)
    bits, n = tokens.bits[inside], int(inside.sum())
    if not n:
        return Bin(first, last, math.nan, None, 0, math.nan)
    mean, accuracy = float(bits.mean()), float(tokens.hits[inside].mean())
    _, block = np.unique(tokens.blocks[inside], return_inverse=True)
    residuals = np.bincount(block, weights=bits - mean)
    number = len(residuals)
    if number < 2:
        return Bin(first, last, mean, None, n, accuracy)
    # Standard error of a ratio: losses and numbers of tokens both vary between blocks.
    error = math.sqrt(number / (number - 1) * float((residuals**2).sum())) / n
    return Bin(first, last, mean, error, n, accuracy)
