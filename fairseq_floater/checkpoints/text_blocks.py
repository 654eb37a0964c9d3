"""Load a RoBERTa or a language model, and the blocks of text whose tokens it predicts.

Data, blocks and masks are those of fairseq's tasks, as `fairseq-validate` and `fairseq-eval-lm` read them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import tasks

from fairseq_floater.checkpoints.dictionaries import load_dictionaries, task_options_of
from fairseq_floater.checkpoints.families import LANGUAGE_MODEL, architecture, family_of
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.roberta_tasks import check_state, lengths_of, load_model
from fairseq_floater.errors import UsageError

MASKED = 0.15
# Shares of the chosen tokens that stay as they are, and that become a random word.
MASKINGS = {"bert": (0.1, 0.1), "mask": (0.0, 0.0)}
BREAK_MODES = ("complete", "complete_doc", "none", "eos")  # fairseq's


def load_blocks(
    state: dict[str, Any],
    args: argparse.Namespace,
    path: Path,
    data: Path,
    split: str,
    options: dict[str, Any],
    position_eval: str | None,
) -> tuple[Any, Any, np.ndarray]:
    """Return the model, a split, and the indices of its blocks of the length wanted, shortest first.

    Args:
        state: the checkpoint.
        args: the checkpoint's model options.
        path: the checkpoint.
        data: binarised, with the dictionary of the checkpoint.
        split: of the data.
        options: ``tokens_per_sample``, the longest block, and ``sample_break_mode``; for a RoBERTa also
            ``seed`` and ``masking`` (of :data:`MASKINGS`).
        position_eval: replaces the checkpoint's, unless it is None.

    Raises:
        UsageError: the blocks are longer than the model takes.
        CheckpointError: another kind of model, another dictionary, or no block that fits.
    """
    if family_of(architecture(args)) is LANGUAGE_MODEL:
        load_dictionaries(state, args, path, str(data))
        task = _task("language_modeling", data, _with_start(options, task_options_of(state)))
        start = remedy = ""
    else:
        check_state(state, path, data)
        task = _task("masked_lm", data, _with_shares(options))
        start, remedy = " with `<s>`", "; warm-start --max-positions makes a model with more"
    if not (data / f"{split}.idx").is_file():
        raise CheckpointError(f"There is no {data / split}.idx, the binarised split `{split}`.")
    law = {"position_eval": position_eval} if position_eval else None
    model, task = load_model(path, task, law)
    longest = options["tokens_per_sample"]
    if longest > model.max_positions():
        raise UsageError(
            f"`--tokens-per-sample` (or the last of --bins) must be at most the {model.max_positions()} "
            f"positions of {path}, but is {longest}{remedy}."
        )
    task.load_dataset(split)
    dataset = task.dataset(split)
    dataset.set_epoch(1)  # as fairseq does before it validates
    lengths = lengths_of(dataset) + getattr(dataset, "add_bos_token", 0)  # not counted by fairseq
    order = np.argsort(lengths, kind="stable")  # little padding
    blocks = order[lengths[order] <= longest]
    if not len(blocks):
        raise CheckpointError(
            f"No line of {split} fits into {longest} tokens{start}; choose another "
            "--sample-break-mode or --tokens-per-sample."
        )
    return model, dataset, blocks


def _with_start(options: dict[str, Any], trained: dict[str, Any]) -> dict[str, Any]:
    """Let a block begin with `<s>` if it did in training, and count it."""
    starts = bool(trained.get("add_bos_token"))
    # Two defaults of this task are names of other options, which only fairseq's commands fill in.
    storage = {"dataset_impl": None, "use_plasma_view": False}
    longest = options["tokens_per_sample"] - starts
    return {**options, **storage, "add_bos_token": starts, "tokens_per_sample": longest}


def _with_shares(options: dict[str, Any]) -> dict[str, Any]:
    """Replace ``masking`` by fairseq's options."""
    kept, random = MASKINGS[options["masking"]]
    shares = {"leave_unmasked_prob": kept, "random_token_prob": random, "mask_prob": MASKED}
    return {**{k: v for k, v in options.items() if k != "masking"}, **shares}


def _task(name: str, data: Path, options: dict[str, Any]) -> Any:
    return tasks.setup_task(argparse.Namespace(task=name, data=str(data), **options))
