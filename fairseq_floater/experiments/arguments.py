"""Make the options of commands from a configuration. All kinds of experiment share this code."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.hardware import ONE_CPU, Machines
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.verbs import as_path

# Options of a training that the protocol sets, and from what.
SET_BY = {
    "arch": "`shape: arch`",
    "seed": "`seed`",
    "save-dir": "`--work`",
    "max-tokens": "`budget: max-tokens`",
    "batch-size": "`budget: max-tokens`",
    "update-freq": "`budget: tokens-per-update`",
}
# Options that the protocol sets, or reads to compute updates, progress and averages.
_PROTOCOLS = (
    *SET_BY,
    "finetune-from-model",
    "max-epoch",
    "max-update",
    "save-interval",
    "save-interval-updates",
    "no-epoch-checkpoints",
    "keep-last-epochs",
    "keep-interval-updates",
)


class ConfiguredExperiment:
    """An experiment with a checked configuration; subclasses make the arguments of its stages.

    Args:
        path: the YAML file.

    Raises:
        ConfigError: the file is unreadable, has unknown or missing keys, or values of the wrong kind.
    """

    config: Any
    read_config: Callable[[Path], Any]

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.config = type(self).read_config(self.path)

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".yaml")

    @property
    def plain_arch(self) -> str:
        return str(self.config.shape["arch"])

    def seed(self, given: int | None) -> int:
        """Return the seed of a training: the one given, else the configuration's."""
        return int(self.config.seed if given is None else given)

    def arch(self, system: System) -> str:
        return self.plain_arch if system.encoder == PLAIN else f"floater_{self.plain_arch}"


@dataclass(frozen=True)
class Request:
    """One system of an experiment, and the inputs and hardware of its run."""

    experiment: Any
    system: System
    work: Path
    raw: Path | None = None  # text to make data from; None if the data exist or are built in
    donor: Path | None = None  # None to train one
    seed: int | None = None  # of training; None for the configuration's seed
    machines: Machines = ONE_CPU
    preparation: tuple[str, ...] = ()  # further options of the script that prepares the text


def in_precision(options: dict[str, Any], machines: Machines) -> dict[str, Any]:
    """Return options, without ``fp16`` on a CPU or if ``machines`` excludes half precision."""
    full = machines.on_cpu or not machines.fp16
    return {name: value for name, value in options.items() if not (full and name == "fp16")}


def saving(folder: Path, seed: int) -> list[str]:
    return ["--save-dir", as_path(folder / "checkpoints"), "--seed", str(seed)]


def without_overridden(system: System, options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` without those that the system's options replace.

    Raises:
        UsageError: the system has an option that only the protocol may set.
    """
    for name in _PROTOCOLS:
        if f"--{name}" in system.given:
            raise UsageError(
                f"`--{name}` cannot be given after `--`: change it in the configuration."
            )
    return {name: value for name, value in options.items() if f"--{name}" not in system.given}
