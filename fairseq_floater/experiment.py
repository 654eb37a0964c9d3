"""An experiment's YAML and the exact fairseq arguments of each of its stages.

The scripts read these (`floater args CONFIG STAGE`), so that every number lives in the YAML once.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import yaml

from fairseq_floater.architectures import ARCHITECTURES
from fairseq_floater.checkpoints import write_text
from fairseq_floater.errors import UsageError
from fairseq_floater.system_run import PLAIN, Run, run_from_words

USER_DIR = Path(__file__).resolve().parent
STAGES = (
    *("settings", "numbers", "split", "systems", "prepare"),
    *("donor", "warm-start", "finetune", "scratch", "validate", "generate", "score-reference"),
)

_SECTIONS: dict[str, tuple[set[str], set[str]]] = {
    # section: (required keys, further keys); None-like empty pair = free fairseq options
    "languages": ({"source", "target"}, set()),
    "data": ({"vocab", "tests"}, {"numbers", "max-len", "max-ratio"}),
    "shape": ({"arch"}, set()),
    "optimisation": ({"lr"}, set()),
    "budget": (
        {"max-tokens", "tokens-per-update", "donor", "finetune", "average"},
        {"scratch"},
    ),
    "generation": ({"beam", "lenpen"}, set()),
}
# Only of a short-to-long experiment.
_S2L_KEYS = (
    {"threshold", "systems"},
    {"edges", "both-sides", "max-len", "max-per-bin", "baseline"},
)
_FREE_SECTIONS = ("shape", "optimisation", "generation")


class ConfigError(UsageError):
    """A configuration that does not make sense; the message names file, key, rule and value."""


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
            with self.path.open(encoding="utf-8") as file:
                loaded = yaml.safe_load(file)
        except FileNotFoundError:
            raise ConfigError(f"There is no configuration {self.path}.") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            first = str(error).replace("\n", " ")
            raise ConfigError(f"{self.path} cannot be read as YAML: {first}.") from None
        self._check(loaded)
        self.config: dict[str, Any] = loaded

    def _check(self, config: Any) -> None:
        if not isinstance(config, dict):
            raise ConfigError(f"{self.path} must hold sections {', '.join(_SECTIONS)}.")
        self._check_keys("the file", config, set(_SECTIONS), {"seed", "s2l"})
        for section, (required, further) in _SECTIONS.items():
            value = config[section]
            if not isinstance(value, dict):
                raise ConfigError(f"{self.path}: `{section}` must be a section of keys.")
            allowed = set(value) if section in _FREE_SECTIONS else further
            self._check_keys(f"`{section}`", value, required, allowed)
        if "s2l" in config:
            self._check_s2l(config["s2l"])
        for stage in ("donor", "finetune", "scratch"):
            limits = config["budget"].get(stage)
            if limits is not None and not isinstance(limits, dict):
                raise ConfigError(
                    f"{self.path}: `budget: {stage}` must hold options like max-epoch."
                )
        for key in ("max-tokens", "tokens-per-update", "average"):
            number = config["budget"][key]
            if not isinstance(number, int) or number < 1:
                raise ConfigError(
                    f"{self.path}: `budget: {key}` must be a positive whole number, "
                    f"but is {number!r} instead."
                )
        if f"floater_{config['shape']['arch']}" not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES.values())
            raise ConfigError(
                f"{self.path}: `shape: arch` must be one of {known}, "
                f"but is {config['shape']['arch']!r} instead."
            )

    def _check_s2l(self, section: Any) -> None:
        if not isinstance(section, dict):
            raise ConfigError(f"{self.path}: `s2l` must be a section of keys.")
        self._check_keys("`s2l`", section, *_S2L_KEYS)
        systems = section["systems"]
        if not systems or not isinstance(systems, list) or not all(map(_is_text, systems)):
            raise ConfigError(
                f"{self.path}: `s2l: systems` must list one line of options a system."
            )
        try:
            names = [run_from_words(words).name for words in systems]
        except UsageError as error:
            raise ConfigError(f"{self.path}: `s2l: systems`: {error}") from None
        if len(set(names)) < len(names):
            raise ConfigError(f"{self.path}: `s2l: systems` names {names} one of them twice.")
        baseline = section.get("baseline")
        if baseline is not None and baseline not in names:
            raise ConfigError(
                f"{self.path}: `s2l: baseline` must be one of {', '.join(names)}, but is "
                f"{baseline!r} instead."
            )

    def _check_keys(self, where: str, found: dict, required: set[str], further: set[str]) -> None:
        missing = sorted(required - set(found))
        unknown = sorted(str(k) for k in set(found) - required - further)
        if missing:
            raise ConfigError(f"{self.path}: {where} lacks {', '.join(missing)}.")
        if unknown:
            known = ", ".join(sorted(required | further))
            raise ConfigError(
                f"{self.path}: {where} has the unknown key {unknown[0]}; it knows {known}."
            )

    @property
    def tests(self) -> list[str]:
        return [str(t) for t in self.config["data"]["tests"]]

    def arguments(
        self,
        stage: str,
        run: Run,
        *,
        data: str = "data/bin",
        work: str = "work",
        processes: int = 0,
        seed: int | None = None,
    ) -> list[str]:
        """The arguments of ``stage`` for ``run``.

        Args:
            stage: one of :data:`STAGES`.
            data: binarised data.
            work: the experiment's folder; the run's own is ``work/<run.name>``.
            processes: GPUs; 0 means one process on the CPU.
            seed: of training; None for the file's.
        """
        if stage not in STAGES:
            raise ConfigError(
                f"`STAGE` must be one of {', '.join(STAGES)}, but is {stage!r} instead."
            )
        if stage == "donor":
            run = Run(PLAIN)
        folder = Path(work) / run.name
        if stage == "settings":
            return self._settings(run, processes, seed)
        if stage == "numbers":
            return self._numbers()
        if stage == "split":
            return self._split()
        if stage == "systems":
            return [f"{run_from_words(words).name}\t{words}" for words in self._s2l()["systems"]]
        if stage == "prepare":
            return self._prepare(work)
        if stage == "warm-start":
            return ["--arch", self.arch(run), "--data", data, *run.model_options()]
        if stage in ("validate", "generate", "score-reference"):
            return self._inference(stage, data, processes)
        limits = self.config["budget"].get(stage)
        if limits is None:
            raise MissingStageError(f"{self.path}: `budget` has no {stage}.")
        arguments = [data, *self._task(), "--arch", self.arch(run), *run.model_options()]
        arguments += _options({k: v for k, v in self.config["shape"].items() if k != "arch"})
        arguments += _options(self._optimisation(stage, limits, processes))
        arguments += self._batching(processes)
        arguments += [
            "--save-dir",
            str(folder / "checkpoints"),
            "--seed",
            str(self.seed if seed is None else seed),
        ]
        if stage == "finetune":
            arguments += ["--finetune-from-model", str(folder / "warm_start.pt")]
        return arguments

    def arch(self, run: Run) -> str:
        plain = str(self.config["shape"]["arch"])
        return plain if run.encoder == PLAIN else f"floater_{plain}"

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 1))

    def tokens_per_update(self, processes: int) -> tuple[int, int]:
        """``--update-freq`` that keeps the configured tokens an update, and the tokens in force."""
        budget = self.config["budget"]
        a_step = budget["max-tokens"] * max(processes, 1)
        frequency = max(1, math.ceil(budget["tokens-per-update"] / a_step))
        return frequency, frequency * a_step

    def _optimisation(self, stage: str, limits: dict[str, Any], processes: int) -> dict[str, Any]:
        """Shared options, then the stage's own; training on starts at half the peak rate (B.2)."""
        options = dict(self.config["optimisation"])
        if not processes:
            options.pop("fp16", None)  # fairseq has no half precision on a CPU
        if stage == "finetune":
            options["lr"] = float(options["lr"]) / 2
        return {**options, **limits}

    def _batching(self, processes: int) -> list[str]:
        budget = self.config["budget"]
        frequency, _ = self.tokens_per_update(processes)
        arguments = ["--max-tokens", str(budget["max-tokens"]), "--update-freq", str(frequency)]
        if processes > 1:
            # fairseq hands a checkpoint from process to process in a form that torch >= 2.6 refuses.
            arguments.append("--load-checkpoint-on-all-dp-ranks")
        return arguments if processes else [*arguments, "--cpu"]

    def _task(self) -> list[str]:
        languages = self.config["languages"]
        return [
            *("--user-dir", str(USER_DIR), "--task", "translation"),
            *("--source-lang", str(languages["source"]), "--target-lang", str(languages["target"])),
        ]

    def _inference(self, stage: str, data: str, processes: int) -> list[str]:
        # Without the multiple of 1, fairseq drops the rest of a batch that is no multiple of 8.
        arguments = [data, *self._task(), "--required-batch-size-multiple", "1"]
        arguments += ["--max-tokens", str(self.config["budget"]["max-tokens"])]
        if stage == "generate":
            arguments += ["--remove-bpe", "sentencepiece", *_options(self.config["generation"])]
        if stage == "score-reference":
            arguments += ["--remove-bpe", "sentencepiece", "--score-reference"]
        return arguments if processes else [*arguments, "--cpu"]

    def write_all(self, folder: str | os.PathLike[str], run: Run, **places: Any) -> None:
        """Write the arguments of every stage that the file has as ``folder/<stage>.args``."""
        for stage in STAGES:
            try:
                words = self.arguments(stage, run, **places)
            except MissingStageError:
                continue
            write_text(Path(folder) / f"{stage}.args", "".join(f"{w}\n" for w in words))

    def _settings(self, run: Run, processes: int, seed: int | None) -> list[str]:
        """What the scripts and tables need to know besides arguments, as ``key=value``."""
        frequency, tokens = self.tokens_per_update(processes)
        languages, generation = self.config["languages"], self.config["generation"]
        return [
            *run.settings(),
            f"arch={self.arch(Run(PLAIN))}",
            f"seed={self.seed if seed is None else seed}",
            f"source={languages['source']}",
            f"target={languages['target']}",
            f"average={self.config['budget']['average']}",
            f"tests={' '.join(self.tests)}",
            f"update_frequency={frequency}",
            f"tokens_per_update={tokens}",
            # fairseq's own defaults where the file is silent.
            f"max_len_a={generation.get('max-len-a', 0)}",
            f"max_len_b={generation.get('max-len-b', 200)}",
            f"baseline={self.config.get('s2l', {}).get('baseline', '')}",
        ]

    def _prepare(self, work: str) -> list[str]:
        options = {k: v for k, v in self.config["data"].items() if k not in ("numbers", "tests")}
        if "s2l" in self.config:
            # The split has learned the subwords: its lengths are counted in them.
            del options["vocab"]
            options["max-len"] = 0  # what the split kept, trains
            options["spm-model"] = str(Path(work) / "split" / "spm.model")
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


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
