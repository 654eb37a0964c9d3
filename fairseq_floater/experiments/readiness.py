"""Find what is missing before hours are spent: `floater info --check`.

Sizes are estimates from the configuration alone. If a package that ``floater`` itself imports is missing
(torch, fairseq, sacrebleu, ...), the command stops before any check, and Python names the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_floater.checkpoints.dictionaries import placeholder_dictionary
from fairseq_floater.checkpoints.rebuild import BareTask
from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.machine_checks import (
    COMMANDS,
    GB,
    MISSING,
    NOTE,
    OK,
    Check,
    Gpu,
    command_check,
    find_gpus,
    gpu_check,
    judged,
    memory_check,
    package_check,
    size_text,
)
from fairseq_floater.experiments.model_options import parse_training
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.requirements import PACKAGES

# `data: wmt14` -> bytes of disk for the data, and of memory for learning their subwords. Disk: the
# archives, 1.7 and 6.7 GB as published. The rest is estimated: the text twice (raw and in subwords,
# together 3 and 33 GB), the binarised data (1 and 6 GB), and a little room.
WMT14 = {"en-de": (7 * GB, 8 * GB), "en-fr": (55 * GB, 32 * GB)}
# Bytes for each parameter. In a checkpoint: float32 and Adam's two moments (--fp16 takes 10). Without an
# optimiser: an average or a warm start. In training: the parameter, its gradient, the two moments.
CHECKPOINT, BARE, TRAINING = 12, 4, 16
PROGRAM = 2 * GB  # memory of a training process besides its model


@dataclass
class Readiness:
    """All checks, and the estimates behind the checks of a configuration."""

    checks: list[Check]
    estimates: dict[str, Any]

    @property
    def failed(self) -> bool:
        return bool(self._named(MISSING))

    def to_json_dict(self) -> dict[str, Any]:
        return {"ready": not self.failed, **dataclasses.asdict(self)}

    def format_text(self) -> str:
        named = f" ({', '.join(self._named(MISSING))})" if self.failed else ""
        counts = f"{len(self._named(MISSING))} missing{named}, {len(self._named(NOTE))} to note"
        verdict = f"{'not ready' if self.failed else 'ready'}: {counts}"
        return "\n".join([*(check.line() for check in self.checks), verdict])

    def _named(self, mark: str) -> list[str]:
        return [check.name for check in self.checks if check.mark == mark]


def check_readiness(
    config: str | None = None,
    *,
    work: str | None = None,
    data: str | None = None,
    processes: int | None = None,
) -> Readiness:
    """Check the installation and, with ``config``, the disk and memory for its donor and one system.

    Args:
        work: the experiment's folder; None for ``work/<name of config>``, as in the scripts.
        data: folder of existing data; None for ``<work>/data``.
        processes: GPUs; None for those that torch sees.

    Raises:
        UsageError: options that do not go together, or a configuration that fairseq refuses.
    """
    for name, value in (("--work", work), ("--data", data)):
        if value is not None and config is None:
            raise UsageError(f"`{name}` is an experiment's folder and needs `--config`.")
    gpus = find_gpus()
    experiment = None if config is None else Experiment(config)
    machines = Machines(len(gpus) if processes is None else processes)
    extra = "wmt14" if experiment is not None and experiment.config.data.wmt14 else None
    checks = [package_check(*names, extra) for names in PACKAGES.items()]
    checks += [command_check(name) for name in COMMANDS if gpus or name != "nvidia-smi"]
    checks.append(gpu_check(gpus, processes))
    result = Readiness(checks, {})
    if experiment is not None:
        folder = Path(work or Path("work") / experiment.name)
        _add_experiment(result, experiment, folder, Path(data or folder / "data"), machines)
        if gpus and not machines.on_cpu:
            checks.append(gpu_memory_check(gpus, result.estimates["parameters"]))
    return result


def _add_experiment(
    result: Readiness, experiment: Experiment, work: Path, data: Path, machines: Machines
) -> None:
    stages = {}
    for stage in ("donor", "finetune"):
        arguments = experiment.arguments(stage, System(), machines=machines)
        stages[stage] = parse_training(arguments, experiment.path, stage)
    parameters = count_parameters(experiment, stages["donor"])
    checkpoint = CHECKPOINT * parameters
    kept = {stage: kept_checkpoints(options) for stage, options in stages.items()}
    of_data, data_bytes, learning = data_check(experiment, data)
    trained = RunFolder(work / PLAIN).read().get("trained")  # then the donor is on the disk already
    needs = {
        "donor": 0 if trained else (kept["donor"] or 1) * checkpoint,
        "system": (kept["finetune"] or 1) * checkpoint + 2 * BARE * parameters,
        "data": data_bytes,
    }
    memory = max(learning, PROGRAM + TRAINING * parameters)
    vocab = experiment.config.data.vocab
    tokens = "without word embeddings" if vocab is None else f"{vocab} subwords"
    made_of = f"{experiment.arch(System(PLAIN))}, {tokens}"
    model = f"{parameters:,} parameters ({made_of}), {size_text(checkpoint)} a checkpoint"
    result.checks += [
        Check(OK, "model", model),
        of_data,
        disk_check(work, needs, kept),
        memory_check(memory),
    ]
    result.estimates = {
        "parameters": parameters,
        "checkpoint_bytes": checkpoint,
        **{f"{stage}_checkpoints": count for stage, count in kept.items()},
        **{f"{name}_bytes": size for name, size in needs.items()},
        "memory_bytes": memory,
    }


def gpu_memory_check(gpus: Sequence[Gpu], parameters: int) -> Check:
    smallest, needed = min(gpu.memory for gpu in gpus), TRAINING * parameters
    seen = f"{size_text(smallest)} on the smallest"
    if smallest < needed:
        advice = "Take GPUs with more memory, or a smaller `shape`."
        return Check(MISSING, "GPU memory", seen, size_text(needed), advice)
    advice = "Batches (`budget: max-tokens`) need more memory."
    return Check(NOTE, "GPU memory", seen, f"{size_text(needed)} for the model", advice)


def count_parameters(experiment: Experiment, options: argparse.Namespace) -> int:
    """Count the plain model's parameters, on torch's meta device, which takes no memory."""
    dictionary = placeholder_dictionary(experiment.config.data.vocab or 0)
    try:
        with torch.device("meta"):
            task = BareTask(dictionary, dictionary)
            model = ARCH_MODEL_REGISTRY[options.arch].build_model(options, task)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{experiment.path}: fairseq cannot build `shape`: {error}.") from None
    return sum(parameter.numel() for parameter in model.parameters())


def kept_checkpoints(options: argparse.Namespace) -> int | None:
    """Return the largest number of checkpoints that a training keeps; None without a limit."""
    kinds = []
    if not options.no_epoch_checkpoints:
        kinds.append((options.keep_last_epochs, options.max_epoch, options.save_interval))
    if options.save_interval_updates:
        interval = options.save_interval_updates
        kinds.append((options.keep_interval_updates, options.max_update, interval))
    count = 2 + max(options.keep_best_checkpoints, 0)  # checkpoint_best.pt and checkpoint_last.pt
    for limit, end, interval in kinds:
        # fairseq deletes the oldest only when the newest is written.
        counts = [limit + 1] if limit > 0 else []
        counts += [end // interval] if end else []
        if not counts:
            return None
        count += min(counts)
    return count


def data_check(experiment: Experiment, folder: Path) -> tuple[Check, int, int]:
    """Return a check of the binarised data, and the bytes of disk and memory that making them takes."""
    settings = experiment.config.data
    if (folder / "bin").is_dir():
        return Check(OK, "data", f"binarised in {folder / 'bin'}"), 0, 0
    if settings.numbers is not None:
        return Check(OK, "data", "the built-in corpus, made by the scripts"), 0, 0
    disk, memory = WMT14.get(settings.wmt14 or "", (0, 0))
    advice = "Pass your text to the scripts with --raw; it needs more disk, up to twice its size."
    if settings.wmt14 is not None:
        advice = f"WMT14 {settings.wmt14} is not downloaded yet (scripts/prepare_wmt14.sh)."
    return Check(NOTE, "data", f"no folder bin in {folder}", "", advice), disk, memory


def disk_check(work: Path, needs: dict[str, int], kept: dict[str, int | None]) -> Check:
    existing = next(folder for folder in (work, *work.parents) if folder.exists())
    total = sum(needs.values())
    free = shutil.disk_usage(existing).free
    labels = {
        "donor": f"{kept['donor'] or 1} checkpoints of the donor",
        "system": f"{kept['finetune'] or 1} of every system",
        "data": "data",
    }
    parts = [f"{labels[name]} {size_text(size)}" for name, size in needs.items() if size]
    seen = f"{size_text(free)} free at {existing.resolve()}"
    needed = f"about {size_text(total)} for one system ({', '.join(parts)})"
    if free < total:
        advice = "Free disk space, keep fewer checkpoints, or pass another --work."
        return Check(MISSING, "disk", seen, needed, advice)
    advice = "All checkpoints are kept, only one is counted: set `optimisation: keep-last-epochs`."
    return judged(None not in kept.values(), "disk", seen, needed, advice, NOTE)
