"""An experiment's YAML and the exact fairseq arguments of each of its stages.

The scripts read these (`floater args CONFIG STAGE`), so that every number lives in the YAML once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.config import (
    AVERAGE_OF,
    ConfigError,
    check_config,
    read_config,
    s2l_systems,
)
from fairseq_floater.experiments.hardware import ONE_CPU, Machines
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR, write_text

STAGES = (
    *("settings", "numbers", "split", "systems", "prepare"),
    *("donor", "warm-start", "finetune", "scratch", "validate", "generate", "score-reference"),
)


class MissingStageError(ConfigError):
    """The experiment has no such stage."""


class Experiment:
    """A checked configuration.

    Args:
        path: the YAML file.

    Raises:
        ConfigError: unreadable, unknown or missing keys, values of the wrong kind.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            loaded = read_config(self.path)
        except FileNotFoundError:
            raise ConfigError(f"There is no configuration {self.path}.") from None
        except UserError as error:
            raise ConfigError(str(error)) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path} cannot be read as YAML: {error}.") from None
        check_config(self.path, loaded)
        self.config: dict[str, Any] = loaded

    @property
    def tests(self) -> list[str]:
        return [str(t) for t in self.config["data"]["tests"]]

    def arguments(
        self,
        stage: str,
        run: System,
        *,
        data: str = "data/bin",
        work: str = "work",
        machines: Machines = ONE_CPU,
        seed: int | None = None,
        donor: str | None = None,
    ) -> list[str]:
        """Return the arguments of ``stage`` for ``run``.

        Args:
            stage: one of :data:`STAGES`.
            data: binarised data.
            work: the experiment's folder; the run's own is ``work/<run.name>``.
            machines: what it runs on.
            seed: of training; None for the file's.
            donor: the folder of the donor, shared by several seeds and trained with the file's;
                None for ``work/plain``.
        """
        if stage not in STAGES:
            raise ConfigError(
                f"`STAGE` must be one of {', '.join(STAGES)}, but is {stage!r} instead."
            )
        if stage == "donor":
            run = System(PLAIN)
        folder = Path(work) / run.name
        if stage == "donor" and donor is not None:
            folder, seed = Path(donor), None
        if stage == "settings":
            return self._settings(run, machines, seed)
        if stage == "numbers":
            return self._numbers()
        if stage == "split":
            return self._split()
        if stage == "systems":
            found = s2l_systems(self._s2l())
            return [f"{system.run.name}\t{system.label}\t{system.options}" for system in found]
        if stage == "prepare":
            return self._prepare(work)
        if stage == "warm-start":
            return ["--arch", self.arch(run), "--data", _place(data), *run.model_options()]
        if stage in ("validate", "generate", "score-reference"):
            return self._inference(stage, data, machines)
        return self._training(
            stage, run, data, folder, machines, self.seed if seed is None else seed
        )

    def _training(
        self, stage: str, run: System, data: str, folder: Path, machines: Machines, seed: int
    ) -> list[str]:
        limits = self.config["budget"].get(stage)
        if limits is None:
            raise MissingStageError(f"{self.path}: `budget` has no {stage}.")
        arguments = [_place(data), *self._task(), "--arch", self.arch(run), *run.model_options()]
        arguments += _options({k: v for k, v in self.config["shape"].items() if k != "arch"})
        arguments += _options(self._optimisation(stage, limits, machines))
        arguments += self._batching(machines)
        arguments += ["--save-dir", _place(folder / "checkpoints"), "--seed", str(seed)]
        if stage == "finetune":
            arguments += ["--finetune-from-model", _place(folder / "warm_start.pt")]
        return arguments

    def arch(self, run: System) -> str:
        plain = str(self.config["shape"]["arch"])
        return plain if run.encoder == PLAIN else f"floater_{plain}"

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 1))

    def tokens_per_update(self, processes: int) -> tuple[int, int]:
        """``--update-freq`` that keeps the configured tokens an update, and the tokens in force."""
        budget = self.config["budget"]
        a_step = budget["max-tokens"] * max(processes, 1)
        frequency = max(1, -(-budget["tokens-per-update"] // a_step))
        return frequency, frequency * a_step

    def _optimisation(
        self, stage: str, limits: dict[str, Any], machines: Machines
    ) -> dict[str, Any]:
        """Shared options, then the stage's own; training on starts at half the peak rate (B.2)."""
        options = dict(self.config["optimisation"])
        if machines.on_cpu or not machines.fp16:
            options.pop("fp16", None)  # fairseq has no half precision on a CPU
        if stage == "finetune":
            options["lr"] = float(options["lr"]) / 2
        return {**options, **{k: v for k, v in limits.items() if k != "average-of"}}

    def _batching(self, machines: Machines) -> list[str]:
        budget = self.config["budget"]
        frequency, _ = self.tokens_per_update(machines.world)
        arguments = ["--max-tokens", str(budget["max-tokens"]), "--update-freq", str(frequency)]
        return [*arguments, *machines.training_options()]

    def _task(self) -> list[str]:
        languages = self.config["languages"]
        return [
            *("--user-dir", str(USER_DIR), "--task", "translation"),
            *("--source-lang", str(languages["source"]), "--target-lang", str(languages["target"])),
        ]

    def _inference(self, stage: str, data: str, machines: Machines) -> list[str]:
        # Without the multiple of 1, fairseq drops the rest of a batch that is no multiple of 8.
        arguments = [_place(data), *self._task(), "--required-batch-size-multiple", "1"]
        arguments += ["--max-tokens", str(self.config["budget"]["max-tokens"])]
        if stage == "generate":
            arguments += [*self._to_text(), *_options(self.config["generation"])]
        if stage == "score-reference":
            arguments += [*self._to_text(), "--score-reference"]
        return [*arguments, "--cpu"] if machines.on_cpu else arguments

    @property
    def bpe(self) -> str:
        return str(self.config["data"].get("bpe", "sentencepiece"))

    def _to_text(self) -> list[str]:
        """Return the options that make raw text of subwords: text is scored, never tokens."""
        if self.bpe == "sentencepiece":
            return ["--remove-bpe", "sentencepiece"]
        return ["--remove-bpe", "subword_nmt", "--tokenizer", "moses"]

    def write_all(self, folder: str | os.PathLike[str], run: System, **places: Any) -> None:
        """Write the arguments of every stage that the file has as ``folder/<stage>.args``."""
        for stage in STAGES:
            try:
                words = self.arguments(stage, run, **places)
            except MissingStageError:
                continue
            write_text(Path(folder) / f"{stage}.args", one_a_line(words))

    def _settings(self, run: System, machines: Machines, seed: int | None) -> list[str]:
        """Return what runs and tables need to know besides arguments, as ``key=value``."""
        frequency, tokens = self.tokens_per_update(machines.world)
        stage = "scratch" if run.scratch else "donor" if run.encoder == PLAIN else "finetune"
        limits = self.config["budget"].get(stage) or {}
        languages, generation = self.config["languages"], self.config["generation"]
        return [
            *run.settings(),
            f"arch={self.arch(System(PLAIN))}",
            f"seed={self.seed if seed is None else seed}",
            f"source={languages['source']}",
            f"target={languages['target']}",
            f"average={self.config['budget']['average']}",
            f"average_of={limits.get('average-of', AVERAGE_OF[0])}",
            f"bpe={self.bpe}",
            f"wmt14={self.config['data'].get('wmt14', '')}",
            f"vocab={self.config['data']['vocab']}",
            f"torchrun={'yes' if machines.torchrun else 'no'}",
            f"processes={machines}",
            f"world={machines.world}",
            f"configured_tokens={self.config['budget']['tokens-per-update']}",
            f"tests={' '.join(self.tests)}",
            f"update_frequency={frequency}",
            f"tokens_per_update={tokens}",
            # fairseq's own defaults where the file is silent.
            f"max_len_a={generation.get('max-len-a', 0)}",
            f"max_len_b={generation.get('max-len-b', 200)}",
            f"baseline={self.config.get('s2l', {}).get('baseline', '')}",
        ]

    def _prepare(self, work: str) -> list[str]:
        other = ("numbers", "tests", "wmt14")
        options = {k: v for k, v in self.config["data"].items() if k not in other}
        if "s2l" in self.config:
            # The split has learned the subwords: its lengths are counted in them.
            del options["vocab"]
            options["max-len"] = 0  # what the split kept, trains
            options["spm-model"] = _place(Path(work) / "split" / "spm.model")
        return self._languages() + _options(options)

    def _languages(self) -> list[str]:
        languages = self.config["languages"]
        return _options({"src": languages["source"], "tgt": languages["target"]})

    def _s2l(self) -> dict[str, Any]:
        if "s2l" not in self.config:
            raise MissingStageError(f"{self.path} is no short-to-long experiment (no `s2l`).")
        return dict(self.config["s2l"])

    def _split(self) -> list[str]:
        section = {k: v for k, v in self._s2l().items() if k not in ("systems", "baseline")}
        return self._languages() + _options({"vocab": self.config["data"]["vocab"], **section})

    def _numbers(self) -> list[str]:
        numbers = self.config["data"].get("numbers")
        if numbers is None:
            raise MissingStageError(f"{self.path} has no built-in corpus (`data: numbers`).")
        return self._languages() + _options(numbers)


def _place(path: str | Path) -> str:
    """Write a path so that no command takes it for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def one_a_line(words: list[str]) -> str:
    """Words as scripts read them: a newline in one (a folder can have it) is ``\\n``, a backslash two."""
    return "".join(f"{w}\n" for w in (w.replace("\\", r"\\").replace("\n", r"\n") for w in words))


def _options(section: dict[str, Any]) -> list[str]:
    """``{"dropout": 0.1, "share-all-embeddings": true}`` as command-line words; false leaves it out."""
    words = []
    for name, value in section.items():
        if value is False or value is None:
            continue
        words.append(f"--{name}")
        if value is not True:
            words += [str(v) for v in value] if isinstance(value, list) else [str(value)]
    return words
