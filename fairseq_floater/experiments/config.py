"""What an experiment's YAML must be: sections, keys, values. Every fault is one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fairseq_floater.data.parallel_text import LANGUAGE
from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.data.wmt14.sources import RECIPES
from fairseq_floater.errors import UsageError, shown
from fairseq_floater.experiments.system import CONTROL, System, system_from_words
from fairseq_floater.files import read_limited
from fairseq_floater.transformer.shapes import ARCHITECTURES

# Ours take 5 kB; PyYAML reads some 100 kB a second.
LARGEST = 1 << 16

_SECTIONS: dict[str, tuple[set[str], set[str]]] = {
    # section: (required keys, further keys); None-like empty pair = free fairseq options
    "languages": ({"source", "target"}, set()),
    "data": ({"vocab", "tests"}, {"numbers", "max-len", "max-ratio", "bpe", "wmt14"}),
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
LONGEST_LABEL = 31  # of a system; the table of scores is then at most 100 columns wide
_FREE_SECTIONS = ("shape", "optimisation", "generation")
# Of which checkpoints a stage's average is made; `average-of` of its budget.
AVERAGE_OF = ("epochs", "updates")
# Keys whose value may be a section of its own.
_NESTED = ("numbers", "donor", "finetune", "scratch")
_LARGEST_COUNT = 2**31 - 1
_LARGEST_SEED = 2**32 - 1  # numpy's


class ConfigError(UsageError):
    """A configuration that does not make sense; the message names file, key, rule and value."""


def check_config(path: Path, config: Any) -> None:
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold sections {', '.join(_SECTIONS)}.")
    _check_keys(path, "the file", config, set(_SECTIONS), {"seed", "s2l"})
    for section, (required, further) in _SECTIONS.items():
        value = config[section]
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: `{section}` must be a section of keys.")
        allowed = set(value) if section in _FREE_SECTIONS else further
        _check_keys(path, f"`{section}`", value, required, allowed)
        _check_values(path, section, value)
    _check_number(path, "seed", config.get("seed", 1), 0, _LARGEST_SEED)
    if "s2l" in config:
        _check_s2l(path, config["s2l"])
    for stage in ("donor", "finetune", "scratch"):
        limits = config["budget"].get(stage)
        if limits is not None and not isinstance(limits, dict):
            raise ConfigError(f"{path}: `budget: {stage}` must hold options like max-epoch.")
        _check_choice(path, f"`budget: {stage}: average-of`", limits, "average-of", AVERAGE_OF)
    _check_data(path, config["data"], config["languages"])
    if "s2l" in config and config["data"].get("bpe", "sentencepiece") != "sentencepiece":
        raise ConfigError(f"{path}: `data: bpe` must be sentencepiece where there is an `s2l`.")
    for key in ("max-tokens", "tokens-per-update", "average"):
        _check_number(path, f"budget: {key}", config["budget"][key], 1, _LARGEST_COUNT)
    _check_rate(path, config["optimisation"]["lr"])
    if f"floater_{config['shape']['arch']}" not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES.values())
        raise ConfigError(
            f"{path}: `shape: arch` must be one of {known}, "
            f"but is {shown(config['shape']['arch'])} instead."
        )


def _check_data(path: Path, data: dict[str, Any], languages: dict[str, Any]) -> None:
    for side in ("source", "target"):
        language = languages[side]
        if not _is_text(language) or not LANGUAGE.fullmatch(language):
            raise ConfigError(
                f"{path}: `languages: {side}` must be a code such as de (in quotes where YAML takes it "
                f"for something else), but is {shown(language)} instead."
            )
    tests = data["tests"]
    if not isinstance(tests, list) or not all(re.fullmatch(r"[\w.-]+", str(t)) for t in tests):
        raise ConfigError(
            f"{path}: `data: tests` must list names of letters, digits, `_`, `-` and `.`, but is "
            f"{shown(tests)} instead."
        )
    if not isinstance(data.get("numbers", {}), dict):
        raise ConfigError(f"{path}: `data: numbers` must hold options like train.")
    _check_choice(path, "`data: bpe`", data, "bpe", SEGMENTATIONS)
    _check_choice(path, "`data: wmt14`", data, "wmt14", RECIPES)
    pair = f"{languages['source']}-{languages['target']}"
    if data.get("wmt14", pair) != pair:
        raise ConfigError(
            f"{path}: `data: wmt14` must be {pair}, as `languages`, but is "
            f"{shown(data['wmt14'])} instead."
        )


def _check_choice(
    path: Path, where: str, section: dict[str, Any] | None, key: str, choices: Iterable[str]
) -> None:
    value = (section or {}).get(key)
    if value is not None and value not in tuple(choices):
        raise ConfigError(
            f"{path}: {where} must be one of {', '.join(choices)}, but is {shown(value)} instead."
        )


def _check_values(path: Path, where: str, section: dict[Any, Any]) -> None:
    """Options and their values become words of a command: one line each, nothing nested."""
    for key, value in section.items():
        if not _is_text(key) or not re.fullmatch(r"[A-Za-z][\w-]*", key, re.ASCII):
            raise ConfigError(f"{path}: `{where}` has the key {shown(key)}, which names no option.")
        if key in _NESTED and isinstance(value, dict):
            _check_values(path, f"{where}: {key}", value)
        elif not all(map(_is_word, value if isinstance(value, list) else [value])):
            raise ConfigError(
                f"{path}: `{where}: {key}` must be numbers, true, false or text of one line, but is "
                f"{shown(value)} instead."
            )


def _check_number(path: Path, where: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        rule = f"a {'positive whole number' if low else 'whole number from 0'} up to {high}"
        raise ConfigError(f"{path}: `{where}` must be {rule}, but is {shown(value)} instead.")


def _check_rate(path: Path, value: Any) -> None:
    # Text too: YAML takes 1e-3, without a point, for it.
    try:
        rate = float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ConfigError(
            f"{path}: `optimisation: lr` must be a number above 0, but is {shown(value)} instead."
        )


def _check_s2l(path: Path, section: Any) -> None:
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: `s2l` must be a section of keys.")
    _check_keys(path, "`s2l`", section, *_S2L_KEYS)
    _check_values(path, "s2l", {k: v for k, v in section.items() if k != "systems"})
    systems = section["systems"]
    if not systems or not isinstance(systems, list) or not all(map(_is_system, systems)):
        raise ConfigError(
            f"{path}: `s2l: systems` must list one line of options a system, or `options` and `label`."
        )
    try:
        found = s2l_systems(section)
    except UsageError as error:
        raise ConfigError(f"{path}: `s2l: systems`: {error}") from None
    names, labels = [system.run.name for system in found], [system.label for system in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: `s2l: systems` names {names} one of them twice.")
    for entry, label in zip(systems, labels):
        if isinstance(entry, dict) and not re.fullmatch(rf"[^|]{{1,{LONGEST_LABEL}}}", label):
            raise ConfigError(
                f"{path}: `s2l: systems: label` must be 1 to {LONGEST_LABEL} characters without `|`, but is "
                f"{shown(label)} instead."
            )
    if double := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"{path}: `s2l: systems` has two labelled {double}; give one a `label`.")
    baseline = section.get("baseline")
    if baseline is not None and baseline not in names:
        raise ConfigError(
            f"{path}: `s2l: baseline` must be one of {', '.join(names)}, but is "
            f"{shown(baseline)} instead."
        )


def _check_keys(path: Path, where: str, found: dict, required: set[str], further: set[str]) -> None:
    missing = sorted(required - set(found))
    unknown = sorted(str(k) for k in set(found) - required - further)
    if missing:
        raise ConfigError(f"{path}: {where} lacks {', '.join(missing)}.")
    if unknown:
        known = ", ".join(sorted(required | further))
        raise ConfigError(
            f"{path}: {where} has the unknown key {shown(unknown[0])[1:-1]}; it knows {known}."
        )


class ListedSystem(NamedTuple):
    """One of `s2l: systems`: its run, the options it was given in, and its name in tables."""

    run: System
    options: str
    label: str


def s2l_systems(section: dict[str, Any]) -> list[ListedSystem]:
    """Return the systems of an `s2l` section; raises UsageError for options that make no run."""
    entries = [e if isinstance(e, dict) else {"options": e} for e in section["systems"]]
    runs = [system_from_words(entry["options"]) for entry in entries]
    return [
        ListedSystem(run, entry["options"], entry.get("label", run.label))
        for run, entry in zip(runs, entries)
    ]


def _is_system(value: Any) -> bool:
    if isinstance(value, dict):
        words = list(value.values())
        return {"options"} <= set(value) <= {"options", "label"} and all(map(_is_line, words))
    return _is_line(value)


def _is_line(value: Any) -> bool:
    return _is_text(value) and _is_word(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_word(value: Any) -> bool:
    """Return whether a value is one word of a command line."""
    if isinstance(value, int):  # or bool
        return -(2**63) <= value < 2**63
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (_is_text(value) and not CONTROL.search(value))


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases, of which a few lines can make gigabytes, and without double keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="write values out, no *alias", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {shown(key.value)} comes twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_config(path: Path) -> Any:
    """Read what the file holds, as plain Python values.

    Raises:
        OSError: it cannot be read.
        UserError: it is larger than :data:`LARGEST`.
        ValueError: it is no YAML, or has aliases or the same key twice; one sentence.
    """
    try:
        text = read_limited(path, LARGEST).decode("utf-8-sig")
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError) as error:
        words = str(error).replace(' in "<unicode string>",', ",").split()
        raise ValueError(" ".join(words).rstrip(".")) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # PyYAML lets the errors of what it calls through: of `!!bool x`, `!!timestamp x` and the like.
    except (LookupError, AttributeError, TypeError, OverflowError):
        raise ValueError("a value is not what its !!tag says") from None
