"""Make the exact arguments of each stage of an experiment with RoBERTa from its YAML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.arguments import (
    ConfiguredExperiment,
    Request,
    in_precision,
    saving,
    without_overridden,
)
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.roberta.config import OWN_KEYS, TASKS, Config, read_config
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR
from fairseq_floater.verbs import as_options, as_path

ROBERTA = "roberta"  # the system that is fairseq's model
FLOATER = "floater"
# Target -> options that it refuses, although the configuration sets them for qkv.
_REFUSED_BY_TARGET = {"hidden": ("floater-start",), "relative": ("floater-start", "floater-delta")}


def system_name(system: System) -> str:
    """Return the name of a system in cells and folders: ``roberta``, ``floater``, ``t5``, ..."""
    return ROBERTA if system.encoder == PLAIN else system.short_name


class Share(NamedTuple):
    """One process's share of a batch: examples, batches per update, and token limit (0: no limit)."""

    batch_size: int
    update_freq: int
    max_tokens: int


def size_of(config: str) -> str:
    """Return the size in a configuration's name (``base`` for ``roberta_base``), else the whole name."""
    return config.removeprefix("roberta_")


class RobertaExperiment(ConfiguredExperiment):
    """An experiment with RoBERTa; its file ``roberta_<size>.yaml`` names its size."""

    config: Config
    read_config = staticmethod(read_config)

    @property
    def size(self) -> str:
        return size_of(self.name)

    def check_task(self, task: str) -> None:
        if task not in self.config.tasks:
            known = ", ".join(self.config.tasks)
            raise UsageError(f"`--task` must be one of {known} in {self.path}, but is {task!r}.")

    # The model.

    def model(self, system: System) -> list[str]:
        shape = {key: value for key, value in self.config.shape.items() if key != "arch"}
        refused = _REFUSED_BY_TARGET.get(system.resolved_target or "", ())
        if system.encoder == FLOATER:
            shape |= {k: v for k, v in self.config.floater.items() if k not in refused}
        # A later option wins: those of the command line come last.
        return ["--arch", self.arch(system), *as_options(shape), *system.model_options()]

    def warm_start(self, system: System, data: Path) -> list[str]:
        return ["--data", as_path(data), *self.model(system)]

    # Masked-LM training.

    def masked_lm(
        self, stage: str, system: System, *, data: Path, folder: Path, machines: Machines
    ) -> list[str]:
        """Return fairseq-train's arguments for the donor's training, or for the stage after it.

        Stage ``flow`` trains the system's warm start (``warm_start.pt`` in ``folder``). For stage
        ``donor``, the system is fairseq's model.

        Raises:
            ConfigError: the stage is ``donor``, but the file has no options for it.
        """
        budget = self.config.budget
        limits = budget.donor if stage == "donor" else budget.flow
        if limits is None:
            raise ConfigError(f"{self.path}: `budget` has no donor; give a checkpoint by --donor.")
        trained: dict[str, Any] = {}
        if stage == "flow":
            trained = {k: v for k, v in limits.items() if k.startswith("floater-")}
            limits = {k: v for k, v in limits.items() if k not in trained}
            if system.encoder != FLOATER:
                trained, limits = {}, {**limits, **(budget.others or {})}
        options = _complete({**self.config.masked_lm, **limits}, machines)
        options = without_overridden(system, options)
        options["max-tokens"] = budget.max_tokens
        options["update-freq"] = budget.update(machines.world)[0]
        arguments = [as_path(data), "--user-dir", str(USER_DIR), "--task", "masked_lm"]
        arguments += ["--criterion", "masked_lm", *as_options(trained), *self.model(system)]
        arguments += [*as_options(options), *_hardware(machines)]
        arguments += saving(folder, self.config.seed)
        if stage == "flow":
            arguments += ["--finetune-from-model", as_path(folder / "warm_start.pt")]
        return arguments

    def position_loss(self) -> list[str]:
        section = self.config.position_loss
        options = {
            "bins": section.bins,
            "tokens-per-sample": section.tokens_per_sample,
            "sample-break-mode": self.config.masked_lm.get("sample-break-mode"),
        }
        return as_options(options)

    # Fine-tuning.

    def finetune(
        self,
        task: str,
        system: System,
        *,
        data: Path,
        start: Path,
        folder: Path,
        machines: Machines,
        seed: int,
    ) -> list[str]:
        """Return fairseq-train's arguments for a fine-tuning from ``start``.

        Raises:
            UsageError: the number of processes does not divide the batch.
        """
        recipe = self.config.recipe(task)
        share = self.share(task, system, machines)
        options = {key: value for key, value in recipe.items() if key not in OWN_KEYS}
        options = without_overridden(system, _complete(options, machines))
        options |= {"batch-size": share.batch_size, "update-freq": share.update_freq}
        options["max-tokens"] = share.max_tokens or None
        arguments = [as_path(data), "--user-dir", str(USER_DIR), "--task", str(options.pop("task"))]
        arguments += self.model(system)
        if system.encoder == FLOATER:
            arguments += as_options(self.config.finetune.get(FLOATER) or {})
        arguments += [*as_options(options), *_hardware(machines), *saving(folder, seed)]
        return [*arguments, "--finetune-from-model", as_path(start)]

    def longest(self, task: str, system: System) -> int:
        """Return the most tokens of an example: the system's ``--max-positions``, else the recipe's."""
        recipe = {**self.config.shape, **self.config.recipe(task)}
        return int(system.given.get("--max-positions", recipe["max-positions"]))

    def share(self, task: str, system: System, machines: Machines) -> Share:
        """Return each process's share, so that an update has the recipe's number of examples.

        The recipe's token limit is for its whole batch. A process gets its part of that limit, but at
        least enough tokens for one example of the greatest length.

        Raises:
            UsageError: the number of processes does not divide the batch.
        """
        recipe, world = self.config.recipe(task), machines.world
        batch, most = recipe["batch"], recipe.get("max-batch", recipe["batch"])
        if batch % world:
            fits = [str(n) for n in range(1, batch + 1) if batch % n == 0]
            raise UsageError(
                f"`--processes` must divide the batch of {batch} of {task}, but they are {world} in all; "
                f"take one of {', '.join(fits)}."
            )
        each = batch // world
        size = next(n for n in range(min(each, most), 0, -1) if each % n == 0)
        tokens = recipe.get("max-tokens")
        limit = 0 if tokens is None else max(self.longest(task, system), tokens * size // batch)
        return Share(size, each // size, limit)

    def updates_an_epoch(self, task: str) -> float | None:
        """Return the recipe's updates divided by its epochs; None if it lacks one of them."""
        recipe = self.config.recipe(task)
        updates, epochs = recipe.get("max-update"), recipe.get("max-epoch")
        return updates / epochs if updates and epochs else None

    def checkpoint(self, task: str) -> str:
        return f"checkpoint_{self.config.recipe(task).get('checkpoint', 'best')}.pt"

    def settings(self, task: str, system: System, machines: Machines, seed: int) -> dict[str, str]:
        """Return the settings of a fine-tuning that tables need."""
        updates = self.updates_an_epoch(task)
        settings = {
            "experiment": ROBERTA,
            "config": self.name,
            "size": self.size,
            "task": task,
            "title": TASKS[task].title,
            "system": system_name(system),
            "arch": self.plain_arch,
            "seed": seed,
            "batch": self.config.recipe(task)["batch"],
            "processes": machines,
            "recipe_updates": "" if updates is None else updates,
        }
        return {key: str(value) for key, value in settings.items()}


@dataclass(frozen=True)
class RobertaRequest(Request):
    """The request of a run with RoBERTa; the experiment has a folder in ``work``."""

    experiment: RobertaExperiment
    extend: str | None = None  # `--extend` of `floater warm-start`, for a longer position table

    @property
    def folder(self) -> Path:
        return self.work / self.experiment.name

    @property
    def mlm(self) -> Path:
        return self.work / "data" / "mlm"

    @property
    def stage_folder(self) -> Path:
        """Return the folder of the masked-LM stage of the system: ``flow`` for FLOATER, ``mlm-t5`` for t5."""
        name = system_name(self.system)
        return self.folder / ("flow" if name == FLOATER else f"mlm-{name}")


def _complete(options: dict[str, Any], machines: Machines) -> dict[str, Any]:
    """Return options with the end of a polynomial schedule, in the precision of ``machines``."""
    options = in_precision(options, machines)
    if options.get("lr-scheduler") == "polynomial_decay" and "max-update" in options:
        options.setdefault("total-num-update", options["max-update"])  # fairseq does not infer it
    return options


def _hardware(machines: Machines) -> list[str]:
    """Return the options of the hardware. In fine-tuning, the masked-LM head gets no gradient."""
    options = machines.training_options()
    in_parallel = machines.world > 1 and not machines.on_cpu
    return [*options, "--find-unused-parameters"] if in_parallel else options
