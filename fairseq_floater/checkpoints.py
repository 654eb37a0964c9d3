"""Reading fairseq checkpoints without running what is in them.

A checkpoint is a pickle. Since torch 2.6 `torch.load` builds only tensors, plain containers and what
is allow-listed; older versions run whatever the file says. Plain fairseq cannot reload its own
checkpoints on torch >= 2.6, because they hold an ``argparse.Namespace``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fairseq_floater.errors import UserError
from fairseq_floater.files import write_whole

# What a file for `fairseq-train --finetune-from-model` must hold.
REQUIRED_KEYS = ("cfg", "model", "optimizer_history", "extra_state", "task_state")


class CheckpointError(UserError):
    """A checkpoint that cannot be read or used; the message is one sentence for a person."""


@functools.cache
def allow_fairseq_checkpoints() -> None:
    """Allow-list what fairseq writes: its Namespace, and numpy scalars of `--eval-bleu` runs."""
    if not hasattr(torch.serialization, "add_safe_globals"):
        return
    import numpy

    allowed: list[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    # numpy 2 moved the module; a checkpoint names the one it was written under.
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        try:
            reconstruct = importlib.import_module(module)._reconstruct
        except (ImportError, AttributeError):
            continue
        allowed.append((reconstruct, f"{module}._reconstruct"))
    int64 = getattr(getattr(numpy, "dtypes", None), "Int64DType", None)
    if int64 is not None:
        allowed.append(int64)
    torch.serialization.add_safe_globals(allowed)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a fairseq checkpoint onto the CPU, building nothing that is not allow-listed.

    Raises:
        CheckpointError: missing, truncated, foreign, or holding something that is refused.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint {path}.")
    allow_fairseq_checkpoints()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path} is refused: {_reason(error)}") from None
    except (RuntimeError, EOFError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no whole checkpoint ({_first_line(error)}); a copy may have broken off."
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(f"{path} is no fairseq checkpoint: it holds no `model` parameters.")
    return state


def model_args(state: dict[str, Any], path: str | os.PathLike[str]) -> argparse.Namespace:
    """The model options a checkpoint was trained with (a copy)."""
    cfg = state.get("cfg")
    options = cfg["model"] if cfg is not None and "model" in cfg else state.get("args")
    if options is None:
        raise CheckpointError(f"{path} holds no model options (neither `cfg.model` nor `args`).")
    values = vars(options) if isinstance(options, argparse.Namespace) else dict(options)
    return argparse.Namespace(**values)


def position_parameters(state: dict[str, Any]) -> dict[str, int]:
    """The tensors of ``state`` that belong to a position encoder of ours, with their sizes."""
    ours = (".positions.", ".source_positions.")
    return {
        name: tensor.numel()
        for name, tensor in state.items()
        if any(part in name for part in ours) and not name.endswith("lr_scale")
    }


def repair_last(folder: str | os.PathLike[str]) -> str:
    """Make sure that fairseq can resume in ``folder``; returns one sentence on what was found.

    fairseq copies ``checkpoint_last.pt`` byte by byte from the checkpoint just saved: a run killed
    meanwhile leaves half a file, and cannot start again. A broken one is replaced by the newest
    whole checkpoint; without any, it is set aside and training starts over.
    """
    folder = Path(folder)
    last = folder / "checkpoint_last.pt"
    if not last.exists():
        return "nothing to resume from"
    if _is_whole(last):
        return f"resuming from {last}"
    others = sorted(
        (p for p in folder.glob("checkpoint*.pt") if p != last),
        key=lambda p: p.stat().st_mtime,
        reverse=True,
    )
    for other in others:
        if _is_whole(other):
            write_whole(last, partial(shutil.copyfile, other))
            return f"{last} was broken off; resuming from {other}"
    last.replace(last.with_suffix(".broken"))
    return f"{last} was broken off and there is no other checkpoint; starting over"


def _is_whole(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except CheckpointError:
        return False
    return True


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint so that it is there whole or not at all.

    Raises:
        CheckpointError: the disk is full, the folder cannot be written.
    """
    try:
        write_whole(path, lambda temporary: torch.save(state, temporary))
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = getattr(error, "strerror", None) or _first_line(error)
        raise CheckpointError(
            f"{path} could not be written ({reason}); nothing was left behind."
        ) from None


def _reason(error: Exception) -> str:
    """The line of torch's message that says what was refused."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line:
            return line.strip()
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
