"""What is missing before hours are spent: `floater info --check`.

Sizes are estimates, made from the configuration alone. Without one of the packages that ``floater``
itself starts with (torch, fairseq, sacrebleu, ...) it stops before any check; Python names the one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_floater.donor import BareTask
from fairseq_floater.errors import UsageError
from fairseq_floater.experiment import Experiment
from fairseq_floater.experiment_rules import ConfigError
from fairseq_floater.machines import Machines
from fairseq_floater.plots import quieten_matplotlib
from fairseq_floater.system_run import PLAIN, Run

OK, NOTE, MISSING = "ok", "note", "missing"
GB = 10**9

# Distribution -> its module. fairseq's is one of two distributions.
PACKAGES = {
    **{name: name for name in ("torch", "fairseq", "torchdiffeq", "sacrebleu", "sentencepiece")},
    **{name: name for name in ("sacremoses", "num2words", "matplotlib", "tqdm")},
    **{"subword-nmt": "subword_nmt", "PyYAML": "yaml"},
}
OLDEST_BASH = (4, 3)  # `wait -n`
# Command -> what its absence means, and what to do.
COMMANDS = {
    "sed": (MISSING, "The scripts call it: install sed."),
    "tee": (MISSING, "The scripts call it: install coreutils."),
    "diff": (MISSING, "The scripts compare a run's arguments with it: install diffutils."),
    "flock": (NOTE, "Two runs in one folder are then not kept apart: install util-linux."),
    "nvidia-smi": (NOTE, "The scripts count GPUs with it: pass them --processes N."),
}
# `data: wmt14` -> bytes of disk for the data, and of memory for learning their subwords. Disk: the
# archives, 1.7 and 6.7 GB as published. The rest is estimated: three copies of the text (raw, tokens,
# subwords) of 1.4 and 15 GB, the binarised data, and room for what is half written.
WMT14 = {"en-de": (12 * GB, 8 * GB), "en-fr": (70 * GB, 32 * GB)}
# Bytes a parameter. In a checkpoint: float32 and Adam's two moments (--fp16 takes 10). Without an
# optimiser: an average or a warm start. In training: the parameter, its gradient, the two moments.
CHECKPOINT, BARE, TRAINING = 12, 4, 16
PROGRAM = 2 * GB  # memory of a training process besides its model


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, what is needed, and what to do about it."""

    mark: str
    name: str
    found: str
    needed: str = ""
    advice: str = ""

    def line(self) -> str:
        needed = f"; needed: {self.needed}" if self.needed else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.mark:<8} {self.name:<14} {self.found}{needed}{advice}"


@dataclass
class Readiness:
    """Every check, and the numbers behind those of a configuration."""

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


@dataclass(frozen=True)
class Gpu:
    """A device that torch sees, and its memory in bytes."""

    name: str
    memory: int


def check(
    config: str | None = None,
    *,
    work: str | None = None,
    data: str | None = None,
    processes: int | None = None,
) -> Readiness:
    """Check the installation and, with ``config``, what its donor and one system take.

    Args:
        work: the experiment's folder; None for ``work/<name of config>``, as in the scripts.
        data: data that are made already; None for ``<work>/data``.
        processes: GPUs; None for those that torch sees.

    Raises:
        UsageError: options that do not go together, or a configuration that fairseq refuses.
    """
    for name, value in (("--work", work), ("--data", data)):
        if value is not None and config is None:
            raise UsageError(f"`{name}` is an experiment's folder and needs `--config`.")
    gpus = find_gpus()
    machines = Machines(len(gpus) if processes is None else processes)
    experiment = None if config is None else Experiment(config)
    checks = [package_check(*names) for names in PACKAGES.items()]
    checks += [bash_check(), *(command_check(c) for c in COMMANDS if gpus or c != "nvidia-smi")]
    checks.append(gpu_check(gpus, processes))
    result = Readiness(checks, {})
    if experiment is not None:
        folder = Path(work or Path("work") / experiment.path.name.removesuffix(".yaml"))
        _add_experiment(result, experiment, folder, data, machines)
        if gpus and not machines.on_cpu:
            checks.append(gpu_memory_check(gpus, result.estimates["parameters"]))
    return result


def _add_experiment(
    result: Readiness, experiment: Experiment, work: Path, data: str | None, machines: Machines
) -> None:
    stages = {s: training_options(experiment, s, machines) for s in ("donor", "finetune")}
    parameters = count_parameters(experiment, stages["donor"])
    checkpoint = CHECKPOINT * parameters
    kept = {stage: kept_checkpoints(options) for stage, options in stages.items()}
    data_found, data_bytes, learning = data_check(experiment, work, data)
    needs = {
        # A donor that is trained is on the disk already.
        "donor": 0 if (work / "plain" / "trained").exists() else (kept["donor"] or 1) * checkpoint,
        "system": (kept["finetune"] or 1) * checkpoint + 2 * BARE * parameters,
        "data": data_bytes,
    }
    memory = max(learning, PROGRAM + TRAINING * parameters)
    arch, vocab = experiment.arch(Run(PLAIN)), experiment.config["data"]["vocab"]
    model = (
        f"{parameters:,} parameters ({arch}, {vocab} subwords), {in_bytes(checkpoint)} a checkpoint"
    )
    result.checks += [
        Check(OK, "model", model),
        update_check(experiment, machines.processes),
        data_found,
        folder_check(work),
        disk_check(work, needs, kept),
        memory_check(available_memory(), memory),
    ]
    result.estimates = {
        "parameters": parameters,
        "checkpoint_bytes": checkpoint,
        **{f"{stage}_checkpoints": count for stage, count in kept.items()},
        **{f"{name}_bytes": size for name, size in needs.items()},
        "memory_bytes": memory,
    }


def package_check(distribution: str, module: str) -> Check:
    """Whether ``module`` can be imported, and its version."""
    quieten_matplotlib()
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken package raises what it likes
        command = f"{sys.executable} -m pip install {distribution}"
        if module in ("torch", "fairseq"):  # which is built against torch
            command = "bash scripts/setup.sh"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Check(MISSING, distribution, f"cannot be imported ({reason})", "", f"Run: {command}")
    for name in ("fairseq-fixed", "fairseq") if module == "fairseq" else (distribution,):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return Check(OK, name, importlib.metadata.version(name))
    return Check(OK, distribution, "can be imported, version unknown")


def command_check(name: str) -> Check:
    path = shutil.which(name)
    mark, advice = COMMANDS[name]
    return Check(OK, name, path) if path else Check(mark, name, "not found", "", advice)


def bash_check() -> Check:
    needed = "{}.{} or later".format(*OLDEST_BASH)
    path = shutil.which("bash")
    lacking = Check(MISSING, "bash", "not found", needed, "The scripts are written for it.")
    if path is None:
        return lacking
    command = [path, "-c", 'echo "${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}"']
    version = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if tuple(int(n) for n in re.findall(r"\d+", version)) < OLDEST_BASH:
        return dataclasses.replace(lacking, found=f"{version} ({path})")
    return Check(OK, "bash", f"{version} ({path})", needed)


def find_gpus() -> list[Gpu]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = (torch.cuda.get_device_properties(i) for i in range(count))
    return [Gpu(properties.name, properties.total_memory) for properties in found]


def gpu_check(gpus: Sequence[Gpu], processes: int | None) -> Check:
    """The GPUs that torch sees, against the ``processes`` that were asked for."""
    kinds = Counter(f"{gpu.name} ({in_bytes(gpu.memory)})" for gpu in gpus)
    found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    found = found or f"none seen by torch {torch.__version__}"
    if (processes or 0) > len(gpus):
        advice = f"Pass --processes {len(gpus)} at most, or set up where torch sees more."
        return Check(MISSING, "GPUs", found, f"{processes} (`--processes`)", advice)
    if not gpus or processes == 0:
        advice = "Training runs on the CPU; WMT14's base model takes GPUs."
        if not gpus and shutil.which("nvidia-smi"):
            advice += (
                " If nvidia-smi lists some, set up with a torch for your CUDA (FLOATER_TORCH)."
            )
        return Check(NOTE, "GPUs", found, "", advice)
    return Check(OK, "GPUs", found)


def gpu_memory_check(gpus: Sequence[Gpu], parameters: int) -> Check:
    smallest, needed = min(gpu.memory for gpu in gpus), TRAINING * parameters
    found = f"{in_bytes(smallest)} on the smallest"
    if smallest < needed:
        advice = "Take GPUs with more memory, or a smaller `shape`."
        return Check(MISSING, "GPU memory", found, in_bytes(needed), advice)
    advice = "Batches (`budget: max-tokens`) come on top."
    return Check(NOTE, "GPU memory", found, f"{in_bytes(needed)} for the model", advice)


def training_options(experiment: Experiment, stage: str, machines: Machines) -> argparse.Namespace:
    """The arguments of a stage as fairseq-train reads them.

    Raises:
        ConfigError: fairseq-train refuses them.
    """
    words = experiment.arguments(stage, Run(), machines=machines)
    place = words.index("--user-dir")
    del words[place : place + 2]  # the plugin is loaded
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser = fairseq_options.get_training_parser()
            return fairseq_options.parse_args_and_arch(parser, words)
    except SystemExit:
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(
            f"{experiment.path}: fairseq-train refuses the options of {stage}: {reason}."
        ) from None


def count_parameters(experiment: Experiment, options: argparse.Namespace) -> int:
    """Parameters of the plain model, built on torch's meta device, which takes no memory."""
    dictionary, vocab = Dictionary(), experiment.config["data"]["vocab"]
    if not isinstance(vocab, int):
        raise ConfigError(
            f"{experiment.path}: `data: vocab` must be a whole number, but is {vocab!r} instead."
        )
    for number in range(vocab - len(dictionary)):
        dictionary.add_symbol(f"subword{number}")
    try:
        with torch.device("meta"):
            task = BareTask(dictionary, dictionary)
            model = ARCH_MODEL_REGISTRY[options.arch].build_model(options, task)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{experiment.path}: fairseq cannot build `shape`: {error}.") from None
    return sum(parameter.numel() for parameter in model.parameters())


def kept_checkpoints(options: argparse.Namespace) -> int | None:
    """The most checkpoints that a training run holds at once; None where nothing sets a limit."""
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


def data_check(experiment: Experiment, work: Path, data: str | None) -> tuple[Check, int, int]:
    """The binarised data, the disk that making them takes, and the memory."""
    folder, settings = Path(data) if data else work / "data", experiment.config["data"]
    if (folder / "bin").is_dir():
        return Check(OK, "data", f"binarised in {folder / 'bin'}"), 0, 0
    none = Check(MISSING, "data", f"no folder bin in {folder}", "", "")
    if data:
        advice = "Make the data with scripts/prepare_text.sh, or leave `--data` out."
        return dataclasses.replace(none, advice=advice), 0, 0
    if settings.get("wmt14") in WMT14:
        disk, memory = WMT14[settings["wmt14"]]
        advice = f"WMT14 {settings['wmt14']} is still to be fetched (scripts/prepare_wmt14.sh)."
        return dataclasses.replace(none, mark=NOTE, advice=advice), disk, memory
    if settings.get("numbers"):
        return Check(OK, "data", "the built-in corpus, made by the scripts"), 0, 0
    # Subwords, and what is made of them for fairseq.
    advice = "Pass the scripts your text with --raw; it takes up to twice its size on top."
    return dataclasses.replace(none, mark=NOTE, advice=advice), 0, 0


def update_check(experiment: Experiment, processes: int) -> Check:
    frequency, tokens = experiment.tokens_per_update(processes)
    wanted = experiment.config["budget"]["tokens-per-update"]
    found = f"--update-freq {frequency}, {tokens:,} tokens an update on "
    found += f"{processes} GPUs" if processes else "the CPU"
    if tokens == wanted:
        return Check(OK, "update", found)
    advice = "Updates are larger than configured: change --processes or `budget: max-tokens`."
    return Check(NOTE, "update", found, f"{wanted:,} (`budget: tokens-per-update`)", advice)


def folder_check(work: Path) -> Check:
    """Whether ``work`` can be written; nothing is left behind."""
    place = _nearest(work)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".floater-"):
            return Check(OK, "work folder", f"{work} can be written")
    except OSError as error:
        advice = "Pass another folder with --work."
        return Check(MISSING, "work folder", f"{work}: {error.strerror} at {place}", "", advice)


def disk_check(work: Path, needs: dict[str, int], kept: dict[str, int | None]) -> Check:
    """Free disk for ``work`` against what donor, one system and data take."""
    place, total = _nearest(work), sum(needs.values())
    free = shutil.disk_usage(place).free
    labels = {
        "donor": f"{kept['donor'] or 1} checkpoints of the donor",
        "system": f"{kept['finetune'] or 1} of every system",
        "data": "data",
    }
    parts = [f"{labels[name]} {in_bytes(size)}" for name, size in needs.items() if size]
    found = f"{in_bytes(free)} free at {place.resolve()}"
    needed = f"about {in_bytes(total)} for one system ({', '.join(parts)})"
    if free < total:
        advice = "Free some, keep fewer checkpoints, or pass another --work."
        return Check(MISSING, "disk", found, needed, advice)
    if None in kept.values():
        advice = (
            "All checkpoints are kept, but one is counted: set `optimisation: keep-last-epochs`."
        )
        return Check(NOTE, "disk", found, needed, advice)
    return Check(OK, "disk", found, needed)


def memory_check(available: int | None, needed: int) -> Check:
    text = f"about {in_bytes(needed)}"
    if available is None:
        return Check(NOTE, "memory", "unknown: there is no /proc/meminfo", text)
    mark = OK if available >= needed else MISSING
    advice = "" if mark == OK else "Free some, or take a machine with more."
    return Check(mark, "memory", f"{in_bytes(available)} available", text, advice)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that the system and this process's control groups (version 2) leave; None if unknown."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", (root / "proc/meminfo").read_text(), re.M)
    except OSError:
        return None
    rooms = [int(found[1]) * 1024] if found else []
    top, own = root / "sys/fs/cgroup", ""
    with contextlib.suppress(OSError):
        named = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.M)
        own = named[1] if named else ""
    for group in (top / own, *(top / own).parents):
        # No limit is the word `max`; the top group of a machine has no such files.
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            # The cache of files counts as used, but makes way.
            cache = re.findall(
                r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.M
            )
            rooms.append(limit - used + sum(map(int, cache)))
    return max(min(rooms), 0) if rooms else None


def in_bytes(size: int) -> str:
    """``6.2 GB``, in powers of ten."""
    return f"{size / GB:,.1f} GB" if size >= GB else f"{size / 10**6:,.1f} MB"


def _nearest(folder: Path) -> Path:
    """``folder`` if it is there, else the nearest above it that is."""
    return next(place for place in (folder, *folder.parents) if place.exists())
