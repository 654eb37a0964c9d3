"""Read the YAML of an experiment with RoBERTa into one dataclass for each section; list the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from fairseq_floater.data.understanding.glue_tasks import GLUE_TASKS
from fairseq_floater.experiments.hardware import UpdateBudget
from fairseq_floater.experiments.sections import (
    check_budget,
    check_missing,
    check_one_of,
    check_rate,
    read_sections,
    require,
)
from fairseq_floater.transformer.shapes import ROBERTA_ARCHITECTURES

TEXTS = ("wikitext-103",)
SUBWORDS = ("gpt2", "sentencepiece")
CHECKPOINTS = ("best", "last")


@dataclass(frozen=True)
class Task:
    """A fine-tuning task."""

    family: str  # glue, race or squad: the verbs that prepare and score it
    title: str  # its name in the paper's tables
    splits: tuple[str, ...] = ("valid",)  # to predict and score; tables show the first
    version: str = ""  # of SQuAD

    @property
    def ending(self) -> str:
        """Return the file ending of its references and predictions."""
        return "tsv" if self.family == "glue" else "json"


TASKS = {
    **{
        name: Task("glue", task.name, tuple(split for split in task.files if split != "train"))
        for name, task in GLUE_TASKS.items()
    },
    "race": Task("race", "RACE", ("test", "valid")),
    "squad1": Task("squad", "SQuAD 1.1", version="1.1"),
    "squad2": Task("squad", "SQuAD 2.0", version="2.0"),
}
# Keys of `finetune`: options of every task, of a family of tasks, and of FLOATER's runs.
_GROUPS = ("all", "glue", "race", "squad", "floater")
# Keys of a task that are not options of fairseq.
OWN_KEYS = ("batch", "max-batch", "checkpoint")


@dataclass
class Data:
    """The source of the text of the masked-LM stage, and its subwords."""

    bpe: str = MISSING
    text: str | None = None
    quizzes: dict[str, Any] | None = None
    vocab: int | None = None


@dataclass
class Budget(UpdateBudget):
    """The tokens of an update of masked-LM training, and the options of each such training.

    ``others`` overrides ``flow`` for encoders whose stage trains all parameters.
    """

    flow: dict[str, Any] = MISSING
    others: dict[str, Any] | None = None
    donor: dict[str, Any] | None = None


@dataclass
class PositionLoss:
    """The bins of token positions in which the masked-LM loss is shown."""

    bins: list[int] = MISSING
    tokens_per_sample: int | None = None


@dataclass
class Config:
    data: Data = MISSING
    shape: dict[str, Any] = MISSING
    floater: dict[str, Any] = MISSING
    masked_lm: dict[str, Any] = MISSING
    budget: Budget = MISSING
    position_loss: PositionLoss = MISSING
    finetune: dict[str, Any] = MISSING
    tasks: dict[str, Any] = MISSING
    seed: int = 1

    def recipe(self, task: str) -> dict[str, Any]:
        """Return the options for all tasks, the task's family and the task; later ones override."""
        family = TASKS[task].family
        groups = (self.finetune.get(name) or {} for name in ("all", family))
        return {key: value for group in (*groups, self.tasks[task]) for key, value in group.items()}


def read_config(path: Path) -> Config:
    """Read and check a configuration.

    Raises:
        ConfigError: unreadable file; unknown, missing or repeated keys; values of the wrong kind.
    """
    return read_sections(path, Config, ("data", "budget", "position_loss"), _check)


def _check(config: Config) -> None:
    data, budget = config.data, config.budget
    for section, keys in (("shape", ("arch", "max-positions")), ("masked_lm", ("optimizer",))):
        check_missing([f"{section}.{k}" for k in keys if k not in getattr(config, section)])
    check_one_of("data: bpe", data.bpe, SUBWORDS)
    check_one_of("data: text", data.text or TEXTS[0], TEXTS)
    check_one_of("shape: arch", config.shape["arch"], ROBERTA_ARCHITECTURES.values())
    needs_vocabulary = data.bpe == "sentencepiece"
    rule = "given with sentencepiece only, and above 0"
    vocab = 1 if data.vocab is None else data.vocab
    fits = (data.vocab is not None) == needs_vocabulary and vocab > 0
    require(fits, "data: vocab", rule, data.vocab)
    once = data.text is None or data.quizzes is None
    require(once, "data: quizzes", "left out if `text` is given", data.quizzes)
    check_budget(budget)
    bins = config.position_loss.bins
    rising = bins and bins == sorted({*bins}) and bins[0] > 0
    require(rising, "position-loss: bins", "rising whole numbers above 0", bins)
    for stage in ("flow", "donor"):
        if (options := getattr(budget, stage)) is not None:
            _check_training(f"budget: {stage}", {**config.masked_lm, **options})
    for section, known in (("finetune", _GROUPS), ("tasks", tuple(TASKS))):
        for name, options in getattr(config, section).items():
            check_one_of(f"{section}: key", name, known)
            require(isinstance(options, dict), f"{section}: {name}", "options", options)
    for name in config.tasks:
        _check_task(name, config.recipe(name))


def _check_training(where: str, options: dict[str, Any]) -> None:
    check_rate(f"{where}: lr", options.get("lr"))
    ends = options.get("max-update") or options.get("max-epoch")
    require(ends, where, "limited by max-update or max-epoch", sorted(options))
    if options.get("lr-scheduler") == "polynomial_decay":
        end = options.get("total-num-update") or options.get("max-update")
        require(end, where, "given total-num-update, the end of polynomial_decay", sorted(options))


def _check_task(name: str, recipe: dict[str, Any]) -> None:
    where = f"tasks: {name}"
    _check_training(where, recipe)
    needed = ["task", "batch"] + (["num-classes"] if TASKS[name].family == "glue" else [])
    check_missing([f"tasks.{name}.{key}" for key in needed if recipe.get(key) is None])
    for key in ("batch", "max-batch", "max-tokens"):
        number = recipe.get(key, 1)
        fits = isinstance(number, int) and number > 0
        require(fits, f"{where}: {key}", "a positive whole number", number)
    check_one_of(f"{where}: checkpoint", recipe.get("checkpoint", "best"), CHECKPOINTS)
