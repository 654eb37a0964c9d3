"""Make the exact fairseq arguments of each stage of an experiment from its YAML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_floater.data.subwords import WORDS
from fairseq_floater.experiments.arguments import (
    ConfiguredExperiment,
    in_precision,
    saving,
    without_overridden,
)
from fairseq_floater.experiments.config import (
    AVERAGE_OF,
    Comparison,
    Config,
    ShortToLong,
    read_config,
)
from fairseq_floater.experiments.hardware import ONE_CPU, Machines
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.system import PLAIN, System, with_separator
from fairseq_floater.files import USER_DIR
from fairseq_floater.verbs import as_options, as_path, dashed


@dataclass(frozen=True)
class StageInputs:
    """The values that the arguments of a stage depend on, besides the configuration.

    ``donor`` is the folder of a donor that several seeds share; it is trained with the file's seed. None
    means ``work/plain``.
    """

    system: System
    data: str | Path = "data/bin"  # binarised
    work: str | Path = "work"
    machines: Machines = ONE_CPU
    seed: int | None = None  # of training; None for the file's seed
    donor: str | Path | None = None

    @property
    def folder(self) -> Path:
        return Path(self.work) / self.system.name


class Experiment(ConfiguredExperiment):
    config: Config
    read_config = staticmethod(read_config)

    def arguments(self, stage: str, system: System, **inputs: Any) -> list[str]:
        """Return the arguments of ``stage``, one of :data:`STAGES`, for ``system``.

        ``inputs`` are further fields of :class:`StageInputs`.
        """
        return STAGES[stage](self, StageInputs(system, **inputs))

    # Trainings.

    def _donor(self, inputs: StageInputs) -> list[str]:
        inputs = replace(inputs, system=System(PLAIN))
        if inputs.donor is None:
            return self._training("donor", inputs, inputs.folder)
        return self._training("donor", replace(inputs, seed=None), Path(inputs.donor))

    def _scratch(self, inputs: StageInputs) -> list[str]:
        return self._training("scratch", inputs, inputs.folder)

    def _finetune(self, inputs: StageInputs) -> list[str]:
        options = self._training("finetune", inputs, inputs.folder)
        return [*options, "--finetune-from-model", as_path(inputs.folder / "warm_start.pt")]

    def _training(self, stage: str, inputs: StageInputs, folder: Path) -> list[str]:
        """Return fairseq-train's arguments; stage ``finetune`` halves the learning rate (paper, B.2)."""
        system, machines, limits = inputs.system, inputs.machines, self.config.budget.of(stage)
        if limits is None:
            raise ConfigError(f"{self.path} lacks `budget: {stage}`.")
        options = in_precision({**self.config.shape, **self.config.optimisation}, machines)
        if stage == "finetune":
            options["lr"] = options["lr"] / 2
        options = without_overridden(system, options | limits)
        options["max-tokens"] = self.config.budget.max_tokens
        options["update-freq"] = self.config.budget.update(machines.world)[0]
        for name in ("arch", "average-of"):
            options.pop(name, None)
        arguments = [as_path(inputs.data), *self._task(), "--arch", self.arch(system)]
        arguments += [*self._model_options(system), *as_options(options)]
        arguments += machines.training_options()
        return [*arguments, *saving(folder, self.seed(inputs.seed))]

    def _warm_start(self, inputs: StageInputs) -> list[str]:
        options = ["--arch", self.arch(inputs.system), "--data", as_path(inputs.data)]
        options += ["--seed", str(self.seed(inputs.seed))]
        return [*options, *self._model_options(inputs.system)]

    def _model_options(self, system: System) -> list[str]:
        options = system.model_options()
        if system.encoder == PLAIN:
            return options
        return [*with_separator(options, self.config.data.separator)]

    def _task(self) -> list[str]:
        languages = self.config.languages
        options = ["--user-dir", str(USER_DIR), "--task", "translation"]
        return [*options, "--source-lang", languages.source, "--target-lang", languages.target]

    # Inference.

    def _generate(self, inputs: StageInputs) -> list[str]:
        generation = as_options(self.config.generation)
        return self._inference(inputs, *self._to_text(), *generation)

    def _score_reference(self, inputs: StageInputs) -> list[str]:
        return self._inference(inputs, *self._to_text(), "--score-reference")

    def _inference(self, inputs: StageInputs, *options: str) -> list[str]:
        # Without the multiple of 1, fairseq drops the rest of a batch whose size is not a multiple of 8.
        arguments = [as_path(inputs.data), *self._task(), "--required-batch-size-multiple", "1"]
        arguments += ["--max-tokens", str(self.config.budget.max_tokens), *options]
        # fairseq's tasks load no longer sentences than these say, whatever the model was trained with.
        for name in ("max-source-positions", "max-target-positions"):
            limit = inputs.system.given.get(f"--{name}", self.config.shape.get(name))
            arguments += as_options({name: limit})
        return [*arguments, "--cpu"] if inputs.machines.on_cpu else arguments

    @property
    def bpe(self) -> str:
        return self.config.data.segmentation

    def _to_text(self) -> list[str]:
        """Return the options that turn subwords into raw text: text is scored, never tokens."""
        if self.bpe == WORDS:
            return []
        if self.bpe == "sentencepiece":
            return ["--remove-bpe", "sentencepiece"]
        return ["--remove-bpe", "subword_nmt", "--tokenizer", "moses"]

    # Data.

    def _numbers(self, inputs: StageInputs) -> list[str]:
        if self.config.data.numbers is None:
            raise ConfigError(f"{self.path} has no built-in corpus (`data: numbers`).")
        return self._languages() + as_options(self.config.data.numbers, list_of_words=True)

    def _split(self, inputs: StageInputs) -> list[str]:
        options = _options_of(self.s2l, "systems", "baseline", "before")
        names = ("vocab", "spm_model", "subwords", "separator", "normalization")
        of_subwords = {name: vars(self.config.data)[name] for name in names}
        options = {**dashed(of_subwords), **options}
        return self._languages() + as_options(options, list_of_words=True)

    def _prepare(self, inputs: StageInputs) -> list[str]:
        options = _options_of(self.config.data, "numbers", "tests", "tokenize", "wmt14")
        if self.config.s2l is not None:
            options["max-len"] = 0  # train on all that the split kept
        if self.config.s2l is not None and self.bpe != WORDS:
            # The split has the subword model, because it counts lengths in subwords.
            del options["vocab"], options["normalization"]
            options["spm-model"] = as_path(Path(inputs.work) / "split" / "spm.model")
        if self.bpe == WORDS and not self.config.shape.get("share-all-embeddings"):
            options["separate-dictionaries"] = True
        return self._languages() + as_options(options)

    def _languages(self) -> list[str]:
        return ["--src", self.config.languages.source, "--tgt", self.config.languages.target]

    # Settings and scores.

    def settings(
        self, system: System, machines: Machines = ONE_CPU, seed: int | None = None
    ) -> dict[str, str]:
        """Return the settings that runs and tables need besides arguments."""
        data, budget, generation = self.config.data, self.config.budget, self.config.generation
        limits = budget.of(system.stage) or {}
        settings = {
            "arch": self.plain_arch,
            "seed": self.seed(seed),
            **asdict(self.config.languages),
            "average": budget.average,
            "average_of": limits.get("average-of", AVERAGE_OF[0]),
            "bpe": self.bpe,
            "wmt14": data.wmt14 or "",
            "vocab": data.vocab or "",
            "processes": machines,
            "tokens_per_update": budget.update(machines.world)[1],
            # fairseq's defaults if the file does not set them.
            "max_len_a": generation.get("max-len-a", 0),
            "max_len_b": generation.get("max-len-b", 200),
        }
        return {**system.settings(), **{key: str(value) for key, value in settings.items()}}

    def check_average(self, system: System) -> None:
        """Raise ConfigError if a training does not keep the checkpoints that its average needs."""
        budget, limits = self.config.budget, self.config.budget.of(system.stage) or {}
        options = {**self.config.optimisation, **limits}
        least = {"max-epoch": budget.average, "keep-last-epochs": budget.average}
        if options.get("average-of", AVERAGE_OF[0]) == AVERAGE_OF[0]:
            usual = {"max-update": 0, "save-interval": 1, "no-epoch-checkpoints": False}
            for key, value in usual.items():
                if options.get(key, value) not in (value, None):
                    raise ConfigError(
                        f"{self.path}: `{key}` of {system.stage} needs `average-of: updates`: an average "
                        "of epochs would miss the last updates."
                    )
        else:
            updates, interval = options.get("max-update"), options.get("save-interval-updates")
            # Else the average would miss the last updates, or the training would end without a checkpoint.
            if not interval:
                raise ConfigError(
                    f"{self.path}: `average-of: updates` of {system.stage} needs "
                    "`save-interval-updates`, which is not set."
                )
            if not (isinstance(updates or 0, int) and isinstance(interval, int)):
                return  # `check_options` refuses them in fairseq's words
            if updates and updates % interval:
                raise ConfigError(
                    f"{self.path}: `max-update` of {system.stage} must be a multiple of "
                    f"`save-interval-updates`, {interval}, but is {updates}."
                )
            last = budget.average * interval
            least = {"max-update": last, "keep-interval-updates": budget.average}
        for key, needed in least.items():
            number = options.get(key)
            if isinstance(number, int) and 0 < number < needed:
                raise ConfigError(
                    f"{self.path}: `{key}` of {system.stage} must be at least {needed} for `budget: "
                    f"average`, {budget.average}, but is {number}."
                )

    def metrics(self) -> list[str]:
        """Return the options of scoring: sacreBLEU's tokenizer and, for whole words, exact match."""
        chosen = self.config.data.tokenize
        tokenizer = [] if chosen is None else ["--tokenize", chosen]
        return [*tokenizer, *(["--exact-match"] if self.bpe == WORDS else [])]

    @property
    def comparison(self) -> Comparison:
        """The section that lists systems; raises ConfigError if it is missing."""
        if self.config.comparison is None:
            raise ConfigError(f"{self.path} lists no systems (`compare` or `s2l`).")
        return self.config.comparison

    @property
    def s2l(self) -> ShortToLong:
        """The short-to-long section; raises ConfigError if it is missing."""
        if self.config.s2l is None:
            raise ConfigError(f"{self.path} is not a short-to-long experiment (no `s2l`).")
        return self.config.s2l


def _options_of(section: Any, *excluded: str) -> dict[str, Any]:
    """Return the keys of a section, except ``excluded``, as options of a verb of `floater`."""
    return dashed({name: value for name, value in vars(section).items() if name not in excluded})


# The method of each stage; `floater args` looks it up.
STAGES: dict[str, Callable[[Experiment, StageInputs], list[str]]] = {
    "numbers": Experiment._numbers,
    "split": Experiment._split,
    "prepare": Experiment._prepare,
    "donor": Experiment._donor,
    "warm-start": Experiment._warm_start,
    "finetune": Experiment._finetune,
    "scratch": Experiment._scratch,
    "validate": Experiment._inference,
    "generate": Experiment._generate,
    "score-reference": Experiment._score_reference,
}
