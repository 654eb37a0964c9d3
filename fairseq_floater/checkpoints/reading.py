"""Read fairseq checkpoints without running what is in them.

A checkpoint is a pickle. Since torch 2.6 `torch.load` builds only tensors, plain containers and what
is allow-listed; older versions run whatever the file says. Plain fairseq cannot reload its own
checkpoints on torch >= 2.6, because they hold an ``argparse.Namespace``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from fairseq_floater.errors import UserError, shown
from fairseq_floater.files import write_whole

# The parts that fairseq writes beside `model`, where it writes it.
_PARTS = {"cfg": dict, "args": argparse.Namespace, "extra_state": dict, "optimizer_history": list}


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
        _refuse_compressed(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path} is refused: {_reason(error)}.") from None
    # torch interprets whatever the bytes say, and so fails in every way that Python has.
    except Exception as error:
        raise CheckpointError(
            f"{path} is no whole checkpoint ({_first_line(error)}); a copy may have broken off."
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(f"{path} is no fairseq checkpoint: it holds no `model` parameters.")
    _check_parts(state, path)
    return state


def _refuse_compressed(path: Path) -> None:
    """Refuse compressed tensors, which torch never writes, and which could unpack to any size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed, which torch.save never does")


def _check_parts(state: dict[str, Any], path: Path) -> None:
    """Check that parameters are tensors that lie in the file, and other parts what fairseq writes."""
    size = path.stat().st_size
    for name, tensor in state["model"].items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{path}: the parameter {shown(name)} of `model` is no tensor.")
        dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
        # A view can repeat one number as often as it likes.
        if not dense or tensor.is_quantized or tensor.numel() * tensor.element_size() > size:
            raise CheckpointError(f"{path}: the parameter {name!r} is no plain tensor.")
        # The multiple of a learning rate (ode/rescaled.py) is read as a number.
        if name.endswith("lr_scale") and not (tensor.numel() == 1 and 0 < float(tensor) < math.inf):
            raise CheckpointError(f"{path}: {name} must be one positive number.")
    for name, kind in _PARTS.items():
        if not isinstance(state.get(name), (kind, NoneType)):
            raise CheckpointError(f"{path}: `{name}` must be a {kind.__name__}.")
    if not all(isinstance(entry, dict) for entry in state.get("optimizer_history") or []):
        raise CheckpointError(f"{path}: `optimizer_history` must be a list of dictionaries.")


def model_args(state: dict[str, Any], path: str | os.PathLike[str]) -> argparse.Namespace:
    """Return the model options that a checkpoint was trained with (a copy)."""
    cfg = state.get("cfg")
    options = cfg["model"] if cfg is not None and "model" in cfg else state.get("args")
    if options is None:
        raise CheckpointError(f"{path} holds no model options (neither `cfg.model` nor `args`).")
    values = vars(options) if isinstance(options, argparse.Namespace) else options
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise CheckpointError(
            f"{path}: its model options must have names, but are {shown(values)}."
        )
    return argparse.Namespace(**values)


@contextmanager
def built_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise CheckpointError where fairseq fails, in whatever way, to build a model from a file's options.

    Raises:
        CheckpointError: for all but UserError, ValueError (a refused option) and OSError.
    """
    try:
        yield
    except (UserError, ValueError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise CheckpointError(f"{path}: its options make no model ({reason}).") from None


def position_parameters(state: dict[str, Any]) -> dict[str, int]:
    """Return the tensors of ``state`` that belong to a position encoder of ours, with their sizes."""
    ours = (".positions.", ".source_positions.")
    return {
        name: tensor.numel()
        for name, tensor in state.items()
        if any(part in name for part in ours) and not name.endswith("lr_scale")
    }


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint so that it is there whole or not at all.

    Raises:
        CheckpointError: the disk is full, the folder cannot be written.
    """
    try:
        write_whole(path, lambda temporary: _save(state, temporary))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or _first_line(error)
        raise CheckpointError(
            f"{path} could not be written ({reason}); nothing was left behind."
        ) from None


def _save(state: dict[str, Any], path: Path) -> None:
    """Save, and on a full disk raise the OSError instead of torch's 'unexpected pos'."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        fault: BaseException | None = error
        while fault is not None and not isinstance(fault, OSError):
            fault = fault.__context__
        raise fault or error from None


def _reason(error: Exception) -> str:
    """Return the line of torch's message that says what was refused."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line:
            return line.strip().rstrip(".")
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
