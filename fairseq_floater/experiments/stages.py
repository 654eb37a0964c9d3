"""Make the exact fairseq arguments of each stage of an experiment from its YAML."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.config import AVERAGE_OF, Comparison, ShortToLong, read_config
from fairseq_floater.experiments.hardware import ONE_CPU, Machines, update_frequency
from fairseq_floater.experiments.paper_numbers import SIZES
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR

STAGES = (
    *("settings", "numbers", "split", "systems", "prepare"),
    *("donor", "warm-start", "finetune", "scratch", "validate", "generate", "score-reference"),
)


class Experiment:
    """A checked configuration.

    Args:
        path: the YAML file.

    Raises:
        ConfigError: unreadable, unknown or missing keys, values of the wrong kind.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.config = read_config(self.path)

    def arguments(
        self,
        stage: str,
        system: System,
        *,
        data: str = "data/bin",
        work: str = "work",
        machines: Machines = ONE_CPU,
        seed: int | None = None,
        donor: str | None = None,
    ) -> list[str]:
        """Return the arguments of ``stage`` for ``system``.

        Args:
            stage: one of :data:`STAGES`.
            data: binarised data.
            work: the experiment's folder; the run's own is ``work/<system.name>``.
            machines: what it runs on.
            seed: of training; None for the file's.
            donor: the folder of the donor, shared by several seeds and trained with the file's;
                None for ``work/plain``.
        """
        if stage == "settings":
            settings = self.settings(system, machines, seed)
            return [f"{key}={value}" for key, value in settings.items()]
        if stage == "numbers":
            return self._numbers()
        if stage == "split":
            return self._split()
        if stage == "systems":
            found = self.comparison.listed()
            return [f"{one.system.name}\t{one.label}\t{one.options}" for one in found]
        if stage == "prepare":
            return self._prepare(work)
        if stage == "donor" and donor is not None:
            seed = None
        drawn = ["--seed", str(self.config.seed if seed is None else seed)]
        if stage == "warm-start":
            words = ["--arch", self.arch(system), "--data", place(data), *drawn]
            return [*words, *system.model_options()]
        if stage in ("validate", "generate", "score-reference"):
            return self._inference(stage, data, machines)
        system = System(PLAIN) if stage == "donor" else system
        folder = Path(work) / system.name
        if stage == "donor" and donor is not None:
            folder = Path(donor)
        start = ["--finetune-from-model", place(folder / "warm_start.pt")]
        return [
            *(place(data), *self._task(), "--arch", self.arch(system), *system.model_options()),
            *self._training(stage, system, machines),
            *("--save-dir", place(folder / "checkpoints")),
            *drawn,
            *(start if stage == "finetune" else []),
        ]

    def _training(self, stage: str, system: System, machines: Machines) -> list[str]:
        """Return shape, optimisation and the stage's own options; training on halves the rate (B.2)."""
        limits = self.config.budget.of(stage)
        if limits is None:
            raise ConfigError(f"{self.path}: `budget` has no {stage}.")
        options = in_precision({**self.config.shape, **self.config.optimisation}, machines)
        if stage == "finetune":
            options["lr"] = options["lr"] / 2
        options = left_by(system, options | limits)
        options["max-tokens"] = self.config.budget.max_tokens
        options["update-freq"] = self.tokens_per_update(machines.world)[0]
        for name in ("arch", "average-of"):
            options.pop(name, None)
        return as_words(options) + machines.training_options()

    def check_average(self, system: System) -> None:
        """Raise ConfigError where a run's training leaves fewer epochs than its average is made of."""
        budget, limits = self.config.budget, self.config.budget.of(system.stage) or {}
        if limits.get("average-of", AVERAGE_OF[0]) != AVERAGE_OF[0]:
            return
        options = {**self.config.optimisation, **limits}
        for key in ("max-epoch", "keep-last-epochs"):
            epochs = options.get(key)
            if isinstance(epochs, int) and 0 < epochs < budget.average:
                raise ConfigError(
                    f"{self.path}: `{key}` of {system.stage} must be at least `budget: average`, "
                    f"{budget.average}, but is {epochs}."
                )

    def arch(self, system: System) -> str:
        """Return fairseq's name of the architecture, or ours of the same shape."""
        plain = str(self.config.shape["arch"])
        return plain if system.encoder == PLAIN else f"floater_{plain}"

    def tokens_per_update(self, processes: int) -> tuple[int, int]:
        """Return the ``--update-freq`` that keeps the configured tokens an update, and those in force."""
        budget = self.config.budget
        return update_frequency(budget.max_tokens, budget.tokens_per_update, processes)

    def _task(self) -> list[str]:
        languages = self.config.languages
        return [
            *("--user-dir", str(USER_DIR), "--task", "translation"),
            *("--source-lang", languages.source, "--target-lang", languages.target),
        ]

    def _inference(self, stage: str, data: str, machines: Machines) -> list[str]:
        # Without the multiple of 1, fairseq drops the rest of a batch that is no multiple of 8.
        arguments = [place(data), *self._task(), "--required-batch-size-multiple", "1"]
        arguments += ["--max-tokens", str(self.config.budget.max_tokens)]
        if stage == "generate":
            arguments += [*self._to_text(), *as_words(self.config.generation)]
        if stage == "score-reference":
            arguments += [*self._to_text(), "--score-reference"]
        return [*arguments, "--cpu"] if machines.on_cpu else arguments

    @property
    def bpe(self) -> str:
        return self.config.data.bpe or "sentencepiece"

    def _to_text(self) -> list[str]:
        """Return the options that make raw text of subwords: text is scored, never tokens."""
        if self.bpe == "sentencepiece":
            return ["--remove-bpe", "sentencepiece"]
        return ["--remove-bpe", "subword_nmt", "--tokenizer", "moses"]

    def settings(
        self, system: System, machines: Machines = ONE_CPU, seed: int | None = None
    ) -> dict[str, str]:
        """Return what runs and tables need to know besides arguments."""
        _, tokens = self.tokens_per_update(machines.world)
        data, budget, generation = self.config.data, self.config.budget, self.config.generation
        limits = budget.of(system.stage) or {}
        found = {
            "arch": self.arch(System(PLAIN)),
            "seed": self.config.seed if seed is None else seed,
            **asdict(self.config.languages),
            "average": budget.average,
            "average_of": limits.get("average-of", AVERAGE_OF[0]),
            "bpe": self.bpe,
            "wmt14": data.wmt14 or "",
            "vocab": data.vocab,
            "processes": machines,
            "tokens_per_update": tokens,
            # fairseq's own defaults where the file is silent.
            "max_len_a": generation.get("max-len-a", 0),
            "max_len_b": generation.get("max-len-b", 200),
        }
        return {**system.settings(), **{key: str(value) for key, value in found.items()}}

    def paper_cell(self, system: System) -> dict[str, Any]:
        """Return what places a run in the paper's Tables 2 and 6, for its record.

        The column is size, source and target; its size is None for a shape of neither table. ``options``
        are further ones of the model, ``{"rnn-layers": "2"}``.
        """
        languages = self.config.languages
        return {
            "column": [SIZES.get(self.arch(System(PLAIN))), languages.source, languages.target],
            "encoder": system.encoder,
            "blocks": system.blocks,
            "target": system.resolved_target,
            "scratch": system.scratch,
            "base": system.base,
            "options": {name.removeprefix("--"): value for name, value in system.given.items()},
        }

    def _prepare(self, work: str) -> list[str]:
        options = _own_options(self.config.data, "numbers", "tests", "tokenize", "wmt14")
        if self.config.s2l is not None:
            # The split has learned the subwords: its lengths are counted in them.
            del options["vocab"]
            options["max-len"] = 0  # what the split kept, trains
            options["spm-model"] = place(Path(work) / "split" / "spm.model")
        return self._languages() + as_words(options)

    def tokenizer(self) -> list[str]:
        """Return what a command that scores is told of sacreBLEU's tokenizer."""
        chosen = self.config.data.tokenize
        return [] if chosen is None else ["--tokenize", chosen]

    def _languages(self) -> list[str]:
        return ["--src", self.config.languages.source, "--tgt", self.config.languages.target]

    @property
    def comparison(self) -> Comparison:
        """The section that lists systems; raises ConfigError where there is none."""
        if self.config.comparison is None:
            raise ConfigError(f"{self.path} lists no systems (`compare` or `s2l`).")
        return self.config.comparison

    @property
    def s2l(self) -> ShortToLong:
        """The short-to-long section; raises ConfigError where there is none."""
        if self.config.s2l is None:
            raise ConfigError(f"{self.path} is no short-to-long experiment (no `s2l`).")
        return self.config.s2l

    def _split(self) -> list[str]:
        options = _own_options(self.s2l, "systems", "baseline", "before")
        return self._languages() + as_words({"vocab": self.config.data.vocab, **options})

    def _numbers(self) -> list[str]:
        if self.config.data.numbers is None:
            raise ConfigError(f"{self.path} has no built-in corpus (`data: numbers`).")
        return self._languages() + as_words(self.config.data.numbers)


def in_precision(options: dict[str, Any], machines: Machines) -> dict[str, Any]:
    """Return options without ``fp16`` where it cannot be, on a CPU, or is not wanted."""
    full = machines.on_cpu or not machines.fp16
    return {name: value for name, value in options.items() if not (full and name == "fp16")}


def place(path: str | Path) -> str:
    """Write a path so that no command takes it for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def _own_options(section: Any, *other: str) -> dict[str, Any]:
    """Return the keys of a section that are options of a command of ours."""
    return {k.replace("_", "-"): v for k, v in vars(section).items() if k not in other}


# What the protocol itself says, or reckons updates, progress and averages from.
_PROTOCOLS = (
    *("arch", "task", "train-subset", "seed", "save-dir", "restore-file", "finetune-from-model"),
    *("max-tokens", "max-sentences", "batch-size", "update-freq", "max-epoch", "max-update"),
    *("save-interval", "save-interval-updates", "no-save", "no-epoch-checkpoints", "patience"),
    *("keep-last-epochs", "keep-interval-updates", "stop-min-lr", "stop-time-hours"),
)


def left_by(system: System, options: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the system gives itself after ``--``: that counts, and not the configuration.

    Raises:
        UsageError: it gives an option that is the protocol's.
    """
    for name in _PROTOCOLS:
        if f"--{name}" in system.given:
            raise UsageError(
                f"`--{name}` cannot be given after `--`: change it in the configuration."
            )
    return {name: value for name, value in options.items() if f"--{name}" not in system.given}


def as_words(section: dict[str, Any]) -> list[str]:
    """Return ``{"dropout": 0.1, "share-all-embeddings": true}`` as words; false leaves an option out."""
    words = []
    for name, value in section.items():
        if value is False or value is None:
            continue
        words.append(f"--{name}")
        if value is not True:
            words += [str(v) for v in value] if isinstance(value, list) else [str(value)]
    return words
