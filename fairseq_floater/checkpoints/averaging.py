"""Average the parameters of several checkpoints (paper, B.2: the last five).

Checkpoints are ordered by number and summed in float64. The result has their dtype and a record of its
inputs. Fewer checkpoints than `--last` or `--best` asks for are an error, never a shorter average.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    load_checkpoint,
    model_args,
    position_parameters,
    refuse_existing,
    save_checkpoint,
    shared_copies,
)
from fairseq_floater.errors import UsageError
from fairseq_floater.files import file_hash
from fairseq_floater.position_encoders import changed_options

_EPOCH = re.compile(r"^checkpoint(\d+)\.pt$")
_UPDATE = re.compile(r"^checkpoint_(\d+)_(\d+)\.pt$")
_BEST = re.compile(r"^checkpoint\.best_.+_-?\d+(\.\d+)?\.pt$")


@dataclass
class AverageReport:
    """The inputs of an average in the order taken, with each file's sha256 and update count.

    ``position_parameters`` counts those of the position encoder. ``training_seconds`` is fairseq's own
    count up to the latest input, restarts included; None if it was not recorded.
    """

    output: str
    rule: str
    inputs: list[dict[str, Any]]
    parameters: int
    position_parameters: int
    training_seconds: float | None

    def format_text(self) -> str:
        rows = [
            f"  {i['path']}  updates {i['num_updates']}  sha256 {i['sha256'][:16]}"
            for i in self.inputs
        ]
        count = f"{len(self.inputs)} checkpoint{'s' * (len(self.inputs) != 1)}"
        return "\n".join([f"averaged {count} ({self.rule}):", *rows, self.output])


def average(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    last: int | None = None,
    best: int | None = None,
    updates: bool = False,
    force: bool = False,
) -> AverageReport:
    """Average checkpoints and write the result as a checkpoint that fairseq loads.

    Args:
        inputs: one folder, with ``last`` or ``best``; or the files themselves.
        last: the N latest ``checkpoint<epoch>.pt`` (``updates``: ``checkpoint_<epoch>_<updates>.pt``).
        best: the N with the best validation value: among ``checkpoint.best_*.pt``
            (--keep-best-checkpoints), or, if there are none, among the epochs.
        force: overwrite ``output``.

    Raises:
        CheckpointError: too few or unusable inputs, different models, or ``output`` exists.
        UsageError: the options choose no checkpoints.
    """
    output = Path(output)
    refuse_existing(output, force)
    paths, rule = _chosen(inputs, last, best, updates)
    refuse_existing(output, force, *paths)
    mean, state, records = _accumulate(paths)
    extra = dict(state.get("extra_state") or {})
    seconds = extra.get("previous_training_time")
    # Moving averages (EMA) belong to one checkpoint. `--store-ema` starts from the mean: the same tensors,
    # stored once.
    if isinstance(extra.get("ema"), dict):
        extra["ema"] = mean
        extra.pop("ema_fp32_params", None)
    state |= {"model": mean, "extra_state": {**extra, "averaged": records}}
    save_checkpoint(state, output)
    left_out = (".version", "lr_scale", "_float_tensor", *shared_copies(mean))
    return AverageReport(
        str(output),
        rule,
        records,
        # Shared parameters count once; version marks and learning-rate scales do not count.
        parameters=sum(t.numel() for n, t in mean.items() if not n.endswith(left_out)),
        position_parameters=sum(position_parameters(mean).values()),
        training_seconds=None if seconds is None else float(seconds),
    )


def _chosen(
    inputs: Sequence[str | os.PathLike[str]], last: int | None, best: int | None, updates: bool
) -> tuple[list[Path], str]:
    paths = [Path(p) for p in inputs]
    if last is not None and best is not None:
        raise UsageError("`--last` and `--best` cannot be given together.")
    if updates and last is None:
        raise UsageError("`--updates` must come with `--last` N.")
    if not paths:
        raise UsageError("`--inputs` must name at least one checkpoint, but names none.")
    count = best if last is None else last
    if count is None:
        if any(p.is_dir() for p in paths):
            raise UsageError(f"{paths[0]} is a folder; pass --last N or --best N.")
        return paths, "the files named"
    if len(paths) != 1 or not paths[0].is_dir():
        raise UsageError(
            f"With --last or --best, `--inputs` must be one folder, but is "
            f"{' '.join(map(str, paths))} instead."
        )
    if last is not None:
        return _last(paths[0], count, updates), f"last {count}"
    return _best(paths[0], count), f"best {count}"


def _last(folder: Path, count: int, updates: bool) -> list[Path]:
    """Return the ``count`` latest checkpoints, oldest first, by number and not by name or date."""
    files = _last_intervals(folder, count) if updates else _numbered(folder, _EPOCH)[-count:]
    if len(files) == count:
        return files
    kind = "checkpoint_<epoch>_<updates>.pt" if updates else "checkpoint<epoch>.pt"
    others = 0 if updates else len(_numbered(folder, _UPDATE))
    hint = " (checkpoint_best.pt and checkpoint_last.pt do not count)"
    if others:
        hint = f"; {others} others are saved by updates: pass --updates for them"
    raise CheckpointError(f"{folder} holds {len(files)} files {kind}, fewer than {count}{hint}.")


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """List files that match, ordered by the last number in the name."""
    matches = ((pattern.match(p.name), p) for p in folder.iterdir())
    return [p for _, p in sorted((int(m.groups()[-1]), p) for m, p in matches if m)]


def _last_intervals(folder: Path, count: int) -> list[Path]:
    """Return the checkpoints of the ``count`` latest multiples of ``--save-interval-updates``.

    fairseq names the checkpoint of an update that ends an epoch by the epoch alone.
    """
    updates = {path: int(path.stem.split("_")[-1]) for path in _numbered(folder, _UPDATE)}
    for path in reversed(_numbered(folder, _EPOCH)):
        state = load_checkpoint(path)
        number = _updates(state)
        if sum(other > number for other in updates.values()) >= count:
            break
        interval = _saving(state).get("save_interval_updates", 0)
        if interval > 0 and number % interval == 0:
            updates[path] = number
    latest = sorted(updates, key=updates.__getitem__)[-count:]
    interval = _saving(load_checkpoint(latest[-1])).get("save_interval_updates", 0) if latest else 0
    for before, after in pairwise(updates[path] for path in latest):
        if after - before > interval > 0:
            raise CheckpointError(
                f"{folder} has no checkpoint between updates {before} and {after}, but one was saved every "
                f"{interval}. If it ended an epoch, a higher --keep-last-epochs keeps it."
            )
    return latest


def _best(folder: Path, count: int) -> list[Path]:
    """Return the ``count`` checkpoints with the best validation value, best first."""
    candidates = [p for p in folder.iterdir() if _BEST.match(p.name)] or _numbered(folder, _EPOCH)
    ranked = []
    for path in candidates:
        state = load_checkpoint(path)
        value = (state.get("extra_state") or {}).get("val_loss")
        if value is None:
            raise CheckpointError(f"{path} holds no validation value (saved without validation).")
        sign = -1 if _saving(state).get("maximize_best_checkpoint_metric") else 1
        if not math.isnan(value):  # of a diverged training
            ranked.append((sign * float(value), str(path), path))
    if len(ranked) < count:
        raise CheckpointError(
            f"{folder} holds {len(ranked)} validated checkpoints, fewer than {count}."
        )
    return [path for *_, path in sorted(ranked)[:count]]


def _accumulate(
    paths: Sequence[Path],
) -> tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Return mean parameters, the latest state and a record of each input. Load one input at a time.

    In float64 the mean of equal checkpoints equals them. Integer tensors are the last checkpoint's.
    """
    total: dict[str, Tensor] = {}
    reference: dict[str, Tensor] = {}
    latest: dict[str, Any] = {}
    positions: dict[str, Any] = {}
    most_updates = 0
    records = []
    for path in paths:
        state = load_checkpoint(path)
        model: dict[str, Tensor] = state["model"]
        reference = reference or model
        args = vars(model_args(state, path))
        positions = positions or args
        changed = changed_options(args, positions)
        options = (f"{name} is {this} and {first}" for name, this, first in changed)
        if fault := _difference(model, reference) or next(options, ""):
            raise CheckpointError(f"{path} and {paths[0]} are of different models: {fault}.")
        for name, tensor in model.items():
            if not tensor.isfinite().all():
                raise CheckpointError(f"{path} cannot be averaged: {name} is not finite.")
            if tensor.is_floating_point():
                tensor = total[name] + tensor if name in total else tensor.double()
            total[name] = tensor
        updates = _updates(state)
        records.append({"path": str(path), "sha256": file_hash(path), "num_updates": updates})
        # Not the last one: `--best` takes the best first.
        if updates >= most_updates:
            # The optimiser's moments belong to one checkpoint, not to the mean.
            without = ("model", "last_optimizer_state")
            latest = {name: value for name, value in state.items() if name not in without}
            most_updates = updates
    mean = {
        name: (tensor / len(paths) if tensor.is_floating_point() else tensor).to(
            reference[name].dtype
        )
        for name, tensor in total.items()
    }
    return mean, latest, records


def _saving(state: dict[str, Any]) -> Mapping[str, Any]:
    """Return the options by which fairseq saved a checkpoint; before 0.10 it kept all options in ``args``."""
    cfg: Any = state.get("cfg")
    return cfg["checkpoint"] if cfg else vars(state["args"])


def _updates(state: dict[str, Any]) -> int:
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates") or 0


def _difference(model: dict[str, Tensor], reference: dict[str, Tensor]) -> str:
    """Return how a model differs from another one; empty if both have the same tensors."""
    differing = reference.keys() ^ model.keys() or {
        name for name, tensor in model.items() if tensor.shape != reference[name].shape
    }
    return f"they differ in {min(differing)}" if differing else ""
