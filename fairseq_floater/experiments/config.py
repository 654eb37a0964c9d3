"""Read an experiment's YAML, a dataclass a section. Every fault is one sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fairseq_floater.data.parallel_text import LANGUAGE
from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.data.wmt14.sources import RECIPES
from fairseq_floater.errors import UsageError, shown
from fairseq_floater.experiments.system import System, system_from_words
from fairseq_floater.transformer.shapes import ARCHITECTURES

LONGEST_LABEL = 31  # of a system; the table of scores is then at most 100 columns wide
# Which checkpoints a stage's average is made of; `average-of` of its budget.
AVERAGE_OF = ("epochs", "updates")
_LARGEST_SEED = 2**32 - 1  # numpy's
_HIGHEST_RATE = 1000  # that of training; a whole number of YAML may be too large to be halved


class ConfigError(UsageError):
    """A configuration that does not make sense; the message names file, key, rule and value."""


class ListedSystem(NamedTuple):
    """One of `s2l: systems`: its run, the options it was given in, and its name in tables."""

    run: System
    options: str
    label: str


# Keys of the file have hyphens where fields have underscores. A section that is a dictionary holds any
# options of fairseq. Options of our own commands go there in the order of the fields, those that are
# None not at all.


@dataclass
class Languages:
    """The languages, as in the file names."""

    source: str = MISSING
    target: str = MISSING


@dataclass
class Data:
    """Where the text comes from, how it is cut and cleaned, and the test sets."""

    bpe: str | None = None
    vocab: int = MISSING
    max_len: int | None = None
    max_ratio: int | float | None = None
    tests: list[str] = MISSING
    numbers: dict[str, Any] | None = None
    wmt14: str | None = None


@dataclass
class Budget:
    """The tokens of an update, the length of each training, and the checkpoints averaged."""

    max_tokens: int = MISSING
    tokens_per_update: int = MISSING
    donor: dict[str, Any] = MISSING
    finetune: dict[str, Any] = MISSING
    scratch: dict[str, Any] | None = None
    average: int = MISSING

    def of(self, stage: str) -> dict[str, Any] | None:
        """Return the options of a training alone; None where there is no such training."""
        return cast(dict[str, Any] | None, getattr(self, stage))


@dataclass
class ShortToLong:
    """How text is split by length, and the systems that are compared."""

    threshold: int = MISSING
    edges: list[int] | None = None
    both_sides: bool | None = None
    max_len: int | None = None
    max_per_bin: int | None = None
    systems: list[Any] = MISSING
    baseline: str | None = None

    def listed(self) -> list[ListedSystem]:
        """Return the systems; raises UsageError for options that make no run."""
        entries = [e if isinstance(e, dict) else {"options": e} for e in self.systems]
        runs = [system_from_words(entry["options"]) for entry in entries]
        return [
            ListedSystem(run, entry["options"], entry.get("label", run.label))
            for run, entry in zip(runs, entries)
        ]


@dataclass
class Config:
    """A whole configuration."""

    languages: Languages = MISSING
    data: Data = MISSING
    shape: dict[str, Any] = MISSING
    optimisation: dict[str, Any] = MISSING
    budget: Budget = MISSING
    generation: dict[str, Any] = MISSING
    seed: int = 1
    s2l: ShortToLong | None = None


def read_config(path: Path) -> Config:
    """Read and check a configuration.

    Raises:
        ConfigError: unreadable; unknown, missing or double keys; values of the wrong kind.
    """
    if not path.exists():
        raise ConfigError(f"There is no configuration {path}.")
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # PyYAML and what it calls raise what they like
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"{path} cannot be read as YAML: {reason}.") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold sections {', '.join(_keys(Config))}.")
    for name in sorted({*loaded} & {*_keys(Config)} - {"seed"}):
        if not isinstance(loaded[name], dict):
            raise ConfigError(f"{path}: `{name}` must be a section of keys.")
    own = {"data", "budget", "s2l"} & {*loaded}
    loaded |= {name: {str(k).replace("-", "_"): v for k, v in loaded[name].items()} for name in own}
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), loaded)
    except ConfigKeyError as error:
        raise ConfigError(f"{path}: {_unknown_key(error)}") from None
    except (OmegaConfBaseException, ValueError) as error:
        key, reason = getattr(error, "full_key", ""), str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{path}: {_where(key)} is of the wrong kind: {reason}.") from None
    _check_missing(path, OmegaConf.missing_keys(merged))
    config = cast(Config, OmegaConf.to_object(merged))
    _check(path, config)
    return config


def _keys(section: type) -> list[str]:
    return [field.name.replace("_", "-") for field in fields(section)]


def _name(full_key: str) -> str:
    """``budget: max-tokens`` for ``budget.max_tokens``."""
    return full_key.replace("_", "-").replace(".", ": ")


def _where(section: str) -> str:
    return f"`{_name(section)}`" if section else "the file"


def _check_missing(path: Path, missing: Iterable[str]) -> None:
    for section, _, key in sorted(name.rpartition(".") for name in missing):
        raise ConfigError(f"{path}: {_where(section)} lacks {_name(key)}.")


def _unknown_key(error: ConfigKeyError) -> str:
    section, key = str(error.full_key).rpartition(".")[0], _name(str(error.key))
    known = _keys(error.object_type)
    near = difflib.get_close_matches(key, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"it knows {', '.join(known)}."
    return f"{_where(section)} has the unknown key {shown(key)[1:-1]}; {advice}"


def _require(path: Path, holds: object, key: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{path}: `{key}` must be {rule}, but is {shown(value)} instead.")


def _check(path: Path, config: Config) -> None:
    """Check what types do not say; raises ConfigError."""
    require = partial(_require, path)
    data, budget, languages = config.data, config.budget, config.languages
    for side, language in vars(languages).items():
        rule = "a code such as de (in quotes where YAML takes it for something else)"
        require(LANGUAGE.fullmatch(language), f"languages: {side}", rule, language)
    named = data.tests and all(re.fullmatch(r"[\w.-]+", str(test)) for test in data.tests)
    rule = "a list of names of letters, digits, `_`, `-` and `.`"
    require(named, "data: tests", rule, data.tests)
    choices: list[tuple[str, Any, Iterable[str]]] = [
        ("shape: arch", _option(path, config, "shape", "arch"), ARCHITECTURES.values()),
        ("data: bpe", data.bpe, SEGMENTATIONS),
        ("data: wmt14", data.wmt14, RECIPES),
    ]
    for stage in ("donor", "finetune", "scratch"):
        limits = budget.of(stage) or {}
        choices.append((f"budget: {stage}: average-of", limits.get("average-of"), AVERAGE_OF))
    for key, value, known in choices:
        require(value in (None, *known), key, f"one of {', '.join(known)}", value)
    pair = f"{languages.source}-{languages.target}"
    require(data.wmt14 in (None, pair), "data: wmt14", f"{pair}, as `languages`", data.wmt14)
    for key in ("max_tokens", "tokens_per_update", "average"):
        number = getattr(budget, key)
        require(number > 0, f"budget: {_name(key)}", "a positive whole number", number)
    require(0 <= config.seed <= _LARGEST_SEED, "seed", f"from 0 to {_LARGEST_SEED}", config.seed)
    rate = _option(path, config, "optimisation", "lr")
    holds = isinstance(rate, (int, float)) and 0 < rate <= _HIGHEST_RATE
    require(holds, "optimisation: lr", f"a number above 0, at most {_HIGHEST_RATE}", rate)
    for key in ("beam", "lenpen"):
        _option(path, config, "generation", key)
    for section in ("shape", "optimisation", "generation"):
        for key, value in getattr(config, section).items():
            values = value if isinstance(value, list) else [value]
            flat = not any(isinstance(v, (dict, list)) for v in values)
            require(flat, f"{section}: {key}", "numbers, true, false or text", value)
    if config.s2l is not None:
        bpe = data.bpe or "sentencepiece"
        require(bpe == "sentencepiece", "data: bpe", "sentencepiece for `s2l`", bpe)
        _check_s2l(path, config.s2l)


def _option(path: Path, config: Config, section: str, key: str) -> Any:
    """Return a required option of fairseq's."""
    value = getattr(config, section).get(key)
    _check_missing(path, [f"{section}.{key}"] if value is None else [])
    return value


def _check_s2l(path: Path, section: ShortToLong) -> None:
    where = f"{path}: `s2l: systems`"
    if not section.systems or not all(map(_is_system, section.systems)):
        raise ConfigError(
            f"{where} must list one line of options a system, or `options` and `label`."
        )
    try:
        found = section.listed()
    except UsageError as error:
        raise ConfigError(f"{where}: {error}") from None
    names, labels = [system.run.name for system in found], [system.label for system in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where} names {names} one of them twice.")
    if double := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"{where} has two labelled {double}; give one a `label`.")
    rule = f"1 to {LONGEST_LABEL} characters without `|`"
    for label in (e["label"] for e in section.systems if "label" in e and isinstance(e, dict)):
        fits = re.fullmatch(rf"[^|\n]{{1,{LONGEST_LABEL}}}", label)
        _require(path, fits, "s2l: systems: label", rule, label)
    known = section.baseline in (None, *names)
    _require(path, known, "s2l: baseline", f"one of {', '.join(names)}", section.baseline)


def _is_system(value: Any) -> bool:
    if isinstance(value, dict):
        known = {"options"} <= set(value) <= {"options", "label"}
        return known and all(isinstance(word, str) for word in value.values())
    return isinstance(value, str)
