"""Make checkpoints that no training has touched."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Mapping
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import Tensor


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return fairseq's configuration of a training with the options ``args``, in plain containers."""
    logging.getLogger("hydra").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, of how fairseq calls it
        config = convert_namespace_to_omegaconf(args)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return plain


def fresh_state(
    cfg: dict[str, Any], parameters: dict[str, Tensor], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return a checkpoint for ``--finetune-from-model``: parameters, and no progress.

    Args:
        cfg: of a training, in plain containers; ``cfg["model"]`` is a Namespace.
        parameters: of the model.
        names: ``criterion_name`` and ``optimizer_name``, where there were any.
    """
    # fairseq reads the last entry of the history wherever it loads a checkpoint; no optimiser state
    # comes with this one, so that only the update count is taken from it.
    history = {name: names.get(name, "") for name in ("criterion_name", "optimizer_name")}
    return {
        "args": None,
        "cfg": cfg,
        "model": parameters,
        "criterion": None,
        "optimizer_history": [{**history, "lr_scheduler_state": {}, "num_updates": 0}],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
            # The same tensors, stored once: fairseq cannot start --store-ema from a checkpoint
            # without them (it has freed the model's parameters when it comes to that).
            "ema": parameters,
        },
    }
