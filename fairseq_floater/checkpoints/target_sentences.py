"""Load a translation model and the sentence pairs whose targets it predicts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import LanguagePairDataset, data_utils

from fairseq_floater.checkpoints.dictionaries import (
    complete_languages,
    load_dictionaries,
    split_prefix,
)
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.rebuild import build_model
from fairseq_floater.checkpoints.roberta_tasks import lengths_of, on_device


def load_sentences(
    state: dict[str, Any], args: argparse.Namespace, path: Path, data: Path, split: str
) -> tuple[Any, Any, np.ndarray]:
    """Return the model, a split, and the indices of its sentences that fit the model, shortest first.

    Args:
        state: the checkpoint.
        args: the checkpoint's model options; the languages are filled in.
        path: the checkpoint's name in messages.
        data: binarised, with the dictionaries of the checkpoint.

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
