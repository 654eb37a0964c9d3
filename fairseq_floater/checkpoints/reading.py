"""Read fairseq checkpoints without running code in them, and write them completely or not at all.

A checkpoint is a pickle. Since torch 2.6 `torch.load` builds only tensors, plain containers and
allow-listed classes. So plain fairseq cannot reload its own checkpoints, because they hold an
``argparse.Namespace``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import logging
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_floater.errors import UserError, first_line
from fairseq_floater.files import write_whole


class CheckpointError(UserError):
    """A checkpoint that cannot be read or used; the message is one sentence for a person."""


class RefusedError(CheckpointError):
    """An intact checkpoint that holds an object that is not allow-listed."""


@functools.cache
def allow_fairseq_checkpoints() -> None:
    """Allow-list what fairseq writes: a Namespace, and numpy numbers such as the best BLEU or F1."""
    import numpy

    allowed: list[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    # numpy 2 moved the module; a checkpoint names the one it was written under.
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        try:
            numpy_module = importlib.import_module(module)
        except ImportError:
            continue
        names = ("_reconstruct", "scalar")
        allowed += [(getattr(numpy_module, name), f"{module}.{name}") for name in names]
    allowed += [numpy.dtypes.Int64DType, numpy.dtypes.Float64DType, numpy.dtypes.Float32DType]
    torch.serialization.add_safe_globals(allowed)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a fairseq checkpoint onto the CPU, building only allow-listed objects.

    Raises:
        CheckpointError: the file is missing, truncated or not a checkpoint, or holds a refused object.
    """
    state = load_pickle(path)
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict) or not all(map(torch.is_tensor, model.values())):
        raise CheckpointError(
            f"{path} is not a fairseq checkpoint: it holds no `model` parameters."
        )
    return state


def load_pickle(path: str | os.PathLike[str]) -> Any:
    """Load a file that torch saved onto the CPU, building only allow-listed objects.

    Raises:
        CheckpointError: the file is missing, truncated, or holds a refused object.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint {path}.")
    with path.open("rb") as file:
        start = file.read(1)
    if start not in (b"P", b"\x80", b""):  # an archive, a pickle, or nothing
        raise CheckpointError(
            f"{path} was not saved by torch; perhaps it is a web page or a pointer of Git LFS."
        )
    allow_fairseq_checkpoints()
    try:
        # torch does not compare the checksums that it writes.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                if damaged := file.testzip():
                    raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = _reason(error)
        if "fairseq.meters" in reason:  # written in 2019, perhaps one of the published RoBERTas
            reason += (
                "; `floater import-roberta` makes a checkpoint of the same model from its files at "
                "Hugging Face"
            )
        refused = RefusedError if "GLOBAL" in str(error) else CheckpointError
        raise refused(f"{path} is refused: {reason}.") from None
    # torch interprets damaged bytes too, so it may raise any exception.
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a complete checkpoint ({first_line(error)}); it may be a partial copy."
        ) from None


def model_args(state: dict[str, Any], path: str | os.PathLike[str]) -> argparse.Namespace:
    """Return a copy of the model options that a checkpoint was trained with."""
    cfg = state.get("cfg")
    options = cfg["model"] if cfg is not None and "model" in cfg else state.get("args")
    if options is None:
        raise CheckpointError(f"{path} holds no model options (neither `cfg.model` nor `args`).")
    return argparse.Namespace(
        **(vars(options) if isinstance(options, argparse.Namespace) else options)
    )


def is_position(name: str) -> bool:
    """Return whether the tensor of this name belongs to a position encoder of this package."""
    return ".positions." in name or ".source_positions." in name


def shared_copies(state: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names under which ``state`` holds parameters of shared embeddings a second time."""
    source, target = (f"{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    pairs = (("decoder.output_projection.weight", target), (target, source))
    copies = [
        copy
        for copy, original in pairs
        if copy in state and original in state and torch.equal(state[copy], state[original])
    ]
    # `complex` shares its frequencies of words if the embeddings are shared; equal values prove nothing.
    omega = "decoder.positions.omega"
    return [*copies, *([omega] if target in copies and omega in state else [])]


def position_parameters(state: dict[str, Any]) -> dict[str, int]:
    """Return the tensors of ``state`` that belong to a position encoder, with their sizes."""
    copies = shared_copies(state)
    return {
        name: tensor.numel()
        for name, tensor in state.items()
        if is_position(name) and not name.endswith("lr_scale") and name not in copies
    }


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return fairseq's configuration of a training with the options ``args``, in plain containers."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    logging.getLogger("hydra").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra warns about how fairseq calls it
        config = convert_namespace_to_omegaconf(args)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return plain


def fresh_state(
    cfg: Mapping[str, Any],
    args: argparse.Namespace,
    parameters: dict[str, torch.Tensor],
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Return a checkpoint for ``--finetune-from-model``: parameters, and no progress.

    Args:
        cfg: of a training, in plain containers.
        names: ``criterion_name`` and ``optimizer_name``, if known.
    """
    # fairseq reads the last entry of the history whenever it loads a checkpoint. There is no optimiser
    # state here, so fairseq takes only the update count from it.
    history = {name: names.get(name, "") for name in ("criterion_name", "optimizer_name")}
    return {
        "args": None,
        "cfg": {**cfg, "model": args},
        "model": parameters,
        "criterion": None,
        "optimizer_history": [{**history, "lr_scheduler_state": {}, "num_updates": 0}],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
            # The same tensors, stored once. Without them fairseq cannot start --store-ema from this
            # checkpoint: it frees the model's parameters before it would copy them.
            "ema": parameters,
        },
    }


def refuse_existing(output: Path, force: bool, *inputs: str | os.PathLike[str]) -> None:
    """Raise CheckpointError for a file that exists, unless ``force``, and always for one of the inputs."""
    if output.resolve() in [Path(path).resolve() for path in inputs]:
        raise CheckpointError(f"{output} is one of the inputs; choose another name.")
    if output.exists() and not force:
        raise CheckpointError(f"{output} exists; choose another name or pass --force.")


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint completely or not at all.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written.
    """
    try:
        write_whole(path, lambda temporary: _save(state, temporary))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise CheckpointError(
            f"{path} could not be written ({reason}); no partial file was left."
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
    return first_line(error)
