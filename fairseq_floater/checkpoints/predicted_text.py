"""Load a checkpoint's model and the text whose tokens it predicts: targets of sentences, or blocks.

Blocks and masks are those of fairseq's tasks, as `fairseq-validate` and `fairseq-eval-lm` read them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import tasks
from fairseq.data import LanguagePairDataset, data_utils

from fairseq_floater.checkpoints.dictionaries import (
    complete_languages,
    load_dictionaries,
    split_prefix,
    task_options_of,
)
from fairseq_floater.checkpoints.families import LANGUAGE_MODEL, architecture, family_of
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.rebuild import build_model
from fairseq_floater.checkpoints.roberta_tasks import check_state, lengths_of, on_device
from fairseq_floater.errors import UsageError

MASKED = 0.15
# Shares of the chosen tokens that stay as they are, and that become a random word.
MASKINGS = {"bert": (0.1, 0.1), "mask": (0.0, 0.0)}
BREAK_MODES = ("complete", "complete_doc", "none", "eos")  # fairseq's


def load_sentences(
    state: dict[str, Any], args: argparse.Namespace, path: Path, data: Path, split: str
) -> tuple[Any, Any, np.ndarray]:
    """Return a translation model, a split, and the indices of its sentences that fit, shortest first.

    Args:
        state: the checkpoint.
        args: the checkpoint's model options; the languages are filled in.
        path: the checkpoint's name in messages.
        data: binarised, with the dictionaries of the checkpoint.
        split: of the data.

    Raises:
        CheckpointError: the split is missing, has another dictionary, or has no sentence that fits.
    """
    complete_languages(args, state, str(data))
    dictionaries = load_dictionaries(state, args, path, str(data))
    prefix = split_prefix(str(data), split, args)
    sides: list[Any] = []
    for language, dictionary in zip((args.source_lang, args.target_lang), dictionaries):
        sentences = data_utils.load_indexed_dataset(f"{prefix}.{language}", dictionary)
        if sentences is None:
            raise CheckpointError(
                f"There is no {prefix}.{language}.idx, the binarised split `{split}`."
            )
        sides += [sentences, sentences.sizes, dictionary]
    dataset = LanguagePairDataset(*sides)
    model = on_device(build_model(state, args, path, dictionaries))
    longest_source, longest_target = model.max_positions()
    fits = (dataset.src_sizes <= longest_source) & (dataset.tgt_sizes <= longest_target)
    if not fits.any():
        raise CheckpointError(f"Every sentence of {split} is longer than {path} takes.")
    order = np.argsort(lengths_of(dataset), kind="stable")  # little padding
    return model, dataset, order[fits[order]]


def load_blocks(
    state: dict[str, Any],
    args: argparse.Namespace,
    path: Path,
    data: Path,
    split: str,
    options: dict[str, Any],
) -> tuple[Any, Any, np.ndarray]:
    """Return a RoBERTa or a language model, a split, and the indices of its blocks, shortest first.

    Arguments are those of :func:`load_sentences`, and ``options``: ``tokens_per_sample``, the longest
    block, and ``sample_break_mode``; for a RoBERTa also ``seed`` and ``masking`` (of :data:`MASKINGS`).

    Raises:
        UsageError: the blocks are longer than the model takes.
        CheckpointError: another kind of model, another dictionary, or no block that fits.
    """
    if family_of(architecture(args)) is LANGUAGE_MODEL:
        dictionaries = load_dictionaries(state, args, path, str(data))
        task = _task("language_modeling", data, _with_start(options, task_options_of(state)))
        start = remedy = ""
    else:
        dictionaries = check_state(state, path, data)
        task = _task("masked_lm", data, _with_shares(options))
        start, remedy = " with `<s>`", "; warm-start --max-positions makes a model with more"
    if not (data / f"{split}.idx").is_file():
        raise CheckpointError(f"There is no {data / split}.idx, the binarised split `{split}`.")
    model = on_device(build_model(state, args, path, dictionaries))
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
