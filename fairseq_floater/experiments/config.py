"""Read the YAML of an experiment into one dataclass for each section. Every error is one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from omegaconf import MISSING

from fairseq_floater.data.parallel_text import LANGUAGE
from fairseq_floater.data.sentencepiece_subwords import NORMALIZATIONS
from fairseq_floater.data.subwords import SUBWORDS, WORDS
from fairseq_floater.data.wmt14.sources import LIMITS, RECIPES
from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.arguments import SET_BY
from fairseq_floater.experiments.hardware import UpdateBudget
from fairseq_floater.experiments.sections import (
    ConfigError,
    check_budget,
    check_missing,
    check_one_of,
    check_rate,
    key_name,
    read_sections,
    require,
)
from fairseq_floater.experiments.system import System, system_from_words
from fairseq_floater.transformer.shapes import ARCHITECTURES

# Values of `average-of` in the budget of a stage: which checkpoints are averaged.
AVERAGE_OF = ("epochs", "updates")


class ListedSystem(NamedTuple):
    """One system of a comparison, its options as one line, and its name in tables."""

    system: System
    options: str
    label: str


# Fields become options of `floater`'s verbs, in this order. A field that is None is left out.


@dataclass
class Languages:
    source: str = MISSING
    target: str = MISSING


@dataclass
class Data:
    """The source of the text, its segmentation and cleaning, the test sets and BLEU's tokenizer.

    With ``subwords: none`` the words are the tokens, and ``vocab`` and ``bpe`` must be left out. With
    ``spm-model``, a path relative to the file that sets it, no subwords are learned.
    """

    bpe: str | None = None
    vocab: int | None = None
    spm_model: str | None = None
    subwords: str | None = None
    max_len: int | None = None
    max_ratio: int | float | None = None
    tests: list[str] = MISSING
    tokenize: str | None = None
    separator: str | None = None  # between the sentences of a document
    normalization: str | None = None  # of the subwords that are learned
    numbers: dict[str, Any] | None = None
    wmt14: str | None = None

    @property
    def segmentation(self) -> str:
        """Return the segmentation, a key of :data:`~fairseq_floater.data.subwords.SEGMENTATIONS`."""
        return self.subwords or self.bpe or SUBWORDS[0]


@dataclass
class Budget(UpdateBudget):
    """The tokens of an update, the length of each training, and the checkpoints averaged."""

    donor: dict[str, Any] = MISSING
    finetune: dict[str, Any] = MISSING
    scratch: dict[str, Any] | None = None
    average: int = MISSING

    def of(self, stage: str) -> dict[str, Any] | None:
        """Return the options of one training; None if the file has none."""
        return cast(dict[str, Any] | None, getattr(self, stage))


@dataclass
class Comparison:
    """The systems that are compared, and the one that every other is compared with."""

    systems: list[Any] = MISSING
    baseline: str | None = None

    def listed(self) -> list[ListedSystem]:
        """Return the systems; raises UsageError for invalid options."""
        entries = [e if isinstance(e, dict) else {"options": e} for e in self.systems]
        runs = [system_from_words(entry["options"]) for entry in entries]
        return [
            ListedSystem(run, entry["options"], entry.get("label", run.label))
            for run, entry in zip(runs, entries)
        ]


@dataclass
class ShortToLong(Comparison):
    """A comparison on text that is split by source length, and how it is split."""

    threshold: int = MISSING
    edges: list[int] | None = None
    both_sides: bool | None = None
    max_len: int | None = None
    max_per_bin: int | None = None
    before: bool = False  # also score each warm start before further training


@dataclass
class Config:
    languages: Languages = MISSING
    data: Data = MISSING
    shape: dict[str, Any] = MISSING
    optimisation: dict[str, Any] = MISSING
    budget: Budget = MISSING
    generation: dict[str, Any] = MISSING
    seed: int = 1
    compare: Comparison | None = None
    s2l: ShortToLong | None = None

    @property
    def comparison(self) -> Comparison | None:
        """Return the section that lists systems: `s2l` if there is one, else `compare`, else None."""
        return self.s2l or self.compare


def read_config(path: Path) -> Config:
    """Read and check a configuration.

    Raises:
        ConfigError: unreadable file; unknown, missing or repeated keys; values of the wrong kind.
    """
    return read_sections(path, Config, ("data", "budget", "compare", "s2l"), _check)


def _check(config: Config) -> None:
    data, budget, languages = config.data, config.budget, config.languages
    for side, language in vars(languages).items():
        rule = "a code such as de (in quotes if YAML reads it as another type)"
        fits = LANGUAGE.fullmatch(language) and language not in ("True", "False")  # YAML's `no`
        require(fits, f"languages: {side}", rule, language)
    needed = {"shape": ["arch"], "optimisation": ["lr"], "generation": ["beam", "lenpen"]}
    for section, keys in needed.items():
        options = getattr(config, section)
        check_missing([f"{section}.{key}" for key in keys if options.get(key) is None])
    check_one_of("shape: arch", config.shape["arch"], ARCHITECTURES.values())
    check_one_of("data: bpe", data.bpe or SUBWORDS[0], SUBWORDS)
    if data.normalization is not None:
        check_one_of("data: normalization", data.normalization, NORMALIZATIONS)
    left_out: tuple[str, ...] = ()
    if data.subwords is not None:
        check_one_of("data: subwords", data.subwords, [WORDS])
        left_out = "vocab", "bpe", "wmt14", "spm_model", "normalization"
    elif data.spm_model is not None:
        left_out = "vocab", "bpe", "wmt14", "normalization"
    else:
        check_missing(["data.vocab"] if data.vocab is None else [])
    rule = "left out with `subwords` or `spm-model` (null removes what `extends` sets)"
    for key in left_out:
        given = getattr(data, key)
        require(given is None, key_name(f"data.{key}"), rule, given)
    require(data.tests, "data: tests", "at least one test set", data.tests)
    if data.wmt14 is not None:
        check_one_of("data: wmt14", data.wmt14, RECIPES)
        pair = f"{languages.source}-{languages.target}"
        require(data.wmt14 == pair, "data: wmt14", f"{pair}, as `languages`", data.wmt14)
        for key, limit in LIMITS.items():
            given, rule = getattr(data, key), f"{limit} with `wmt14`, or left out"
            require(given in (None, limit), key_name(f"data.{key}"), rule, given)
    trainings = {f"budget: {s}": budget.of(s) or {} for s in ("donor", "finetune", "scratch")}
    for section, options in trainings.items():
        unit = options.get("average-of", AVERAGE_OF[0])
        check_one_of(f"{section}: average-of", unit, AVERAGE_OF)
    check_budget(budget)
    require(budget.average > 0, "budget: average", "a positive whole number", budget.average)
    beam = config.generation["beam"]
    require(isinstance(beam, int) and beam > 0, "generation: beam", "a whole number above 0", beam)
    check_rate("optimisation: lr", config.optimisation["lr"])
    for section, options in {"optimisation": config.optimisation, **trainings}.items():
        for key, setter in SET_BY.items():
            rule = f"left out, since {setter} sets it"
            require(key not in options, f"{section}: {key}", rule, options.get(key))
    if config.s2l is not None:
        bpe = data.segmentation
        require(bpe in (SUBWORDS[0], WORDS), "data: bpe", "sentencepiece for `s2l`", bpe)
        _check_systems("s2l", config.s2l)
    if config.compare is not None:
        _check_systems("compare", config.compare)


def _check_systems(name: str, section: Comparison) -> None:
    where = f"`{name}: systems`"
    if not section.systems or not all(map(_is_system, section.systems)):
        raise ConfigError(
            f"{where} must list one line of options for each system, or `options` and `label`."
        )
    try:
        entries = section.listed()
    except UsageError as error:
        raise ConfigError(f"{where}: {error}") from None
    names, labels = [entry.system.name for entry in entries], [entry.label for entry in entries]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where} lists a system twice: {names}.")
    if double := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"{where} has two labelled {double}; give one a `label`.")
    if section.baseline is not None:
        check_one_of(f"{name}: baseline", section.baseline, names)


def _is_system(value: Any) -> bool:
    if isinstance(value, dict):
        known = {"options"} <= set(value) <= {"options", "label"}
        return known and all(isinstance(word, str) for word in value.values())
    return isinstance(value, str)
