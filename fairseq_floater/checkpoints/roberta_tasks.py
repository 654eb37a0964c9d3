"""Load a RoBERTa, with or without a position encoder, and a fairseq task with its data."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel

from fairseq_floater.checkpoints.dictionaries import load_dictionaries
from fairseq_floater.checkpoints.families import (
    ROBERTA,
    TOKENS,
    architecture,
    family_of,
    not_of_family,
)
from fairseq_floater.checkpoints.reading import CheckpointError, model_args


def roberta_args(state: dict[str, Any], path: Path) -> argparse.Namespace:
    """Return the model options of a RoBERTa's checkpoint; raises CheckpointError for another model."""
    args = model_args(state, path)
    arch = architecture(args)
    if family_of(arch) is not ROBERTA:
        raise not_of_family(path, ROBERTA.name, arch)
    return args


def check_state(state: dict[str, Any], path: Path, data: Path) -> tuple[Dictionary, Dictionary]:
    """Check that a checkpoint is a RoBERTa's, with the dictionary of ``data`` (dict.txt or input0/dict.txt).

    Returns:
        The dictionary, twice.

    Raises:
        CheckpointError: another model or dictionary, or a format of 2019, which fairseq cannot load.
    """
    args = roberta_args(state, path)
    if "optimizer_history" not in state or TOKENS not in state["model"]:
        raise CheckpointError(
            f"{path} has fairseq's format of 2019; `floater import-roberta {path} NEW.pt` converts it."
        )
    return load_dictionaries(state, args, path, str(data))


def load_model(path: Path, overrides: dict[str, Any] | None = None) -> tuple[RobertaModel, Any]:
    """Load a checkpoint with its task and heads. Return the model, in evaluation mode, and the task.

    Args:
        path: the checkpoint, which :func:`check_state` has accepted.
        overrides: of the checkpoint's options.

    Raises:
        CheckpointError: the checkpoint does not fit the task or its own options.
    """
    with _quiet():
        try:
            models, _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], arg_overrides=overrides
            )
        except (RuntimeError, ValueError, AssertionError) as error:
            reason = (str(error).splitlines() or [""])[-1].strip().rstrip(".")
            raise CheckpointError(f"{path} does not fit its own options: {reason}.") from None
    return on_device(models[0]).eval(), task


def on_device(model: Any) -> Any:
    """Move a model to the GPU, if there is one."""
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def lengths_of(dataset: Any) -> np.ndarray:
    """Return the number of tokens of each example of a fairseq dataset."""
    return np.array([dataset.num_tokens(i) for i in range(len(dataset))], dtype=np.int64)


def batches(dataset: Any, examples: np.ndarray, size: int, model: Any) -> Iterator[dict[str, Any]]:
    """Collate examples, ``size`` at a time and in this order, into batches on the model's device."""
    device = next(model.parameters()).device
    for begin in range(0, len(examples), size):
        batch = dataset.collater([dataset[int(i)] for i in examples[begin : begin + size]])
        yield utils.move_to_cuda(batch, device) if device.type == "cuda" else batch


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what fairseq and hydra log, below errors, while they load a checkpoint."""
    loggers = [logging.getLogger(name) for name in ("fairseq", "hydra")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
