"""Read a YAML of sections into dataclasses; every error is one sentence with file, key, rule and value.

Keys of the file have hyphens where fields have underscores. A section that is a dictionary holds any
options of fairseq.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fairseq_floater.errors import UsageError, first_line, shown

# Section -> the kind of configuration that has it.
_OWNERS = {
    "tasks": "for an experiment with RoBERTa (scripts/tables345.sh)",
    "languages": "for translation (scripts/protocol.sh and compare.sh)",
}
_Sections = TypeVar("_Sections")


class ConfigError(UsageError):
    """A configuration that does not make sense; the message names file, key, rule and value."""


def read_sections(
    path: Path,
    kind: type[_Sections],
    nested: Collection[str],
    check: Callable[[_Sections], None],
) -> _Sections:
    """Read a configuration whose top level is ``kind``, a dataclass of sections and a ``seed``.

    Args:
        path: the YAML file.
        kind: the dataclass.
        nested: the sections that are dataclasses themselves; the others hold options of fairseq.
        check: raises ConfigError for a rule that types cannot express; this adds the file's name.

    Raises:
        ConfigError: unreadable file; unknown, missing or repeated keys; values of the wrong kind.
    """
    loaded = {name.replace("-", "_"): v for name, v in _load(path, kind).items()}
    for name in {*nested} & {*loaded}:
        loaded[name] = {str(k).replace("-", "_"): v for k, v in loaded[name].items()}
    try:
        merged = OmegaConf.merge(OmegaConf.structured(kind), loaded)
    except ConfigKeyError as error:
        raise ConfigError(f"{path}: {_unknown_key(error)}") from None
    except (OmegaConfBaseException, ValueError) as error:
        key = _where(getattr(error, "full_key", ""))
        raise ConfigError(f"{path}: {key} has the wrong type: {first_line(error)}.") from None
    try:
        check_missing(OmegaConf.missing_keys(merged))
        sections = cast(_Sections, OmegaConf.to_object(merged))
        check(sections)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return sections


def _load(path: Path, kind: type) -> dict[str, Any]:
    loaded = OmegaConf.to_container(read_yaml(path))
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold sections {', '.join(_keys(kind))}.")
    if foreign := sorted({*loaded} & {*_OWNERS} - {*_keys(kind)}):
        raise ConfigError(f"{path} is {_OWNERS[foreign[0]]}.")
    loaded = {name: value for name, value in loaded.items() if value is not None}
    for name in sorted({*loaded} & {*_keys(kind)} - {"seed"}):
        if not isinstance(loaded[name], dict):
            raise ConfigError(f"{path}: `{name}` must be a section of keys.")
    return {str(name): value for name, value in loaded.items()}


def read_yaml(path: Path) -> DictConfig | ListConfig:
    """Read a YAML file; its keys override those of the file that it ``extends``, relative to its folder."""
    if not path.exists():
        raise ConfigError(f"There is no configuration {path}.")
    try:
        loaded = OmegaConf.load(path)
        OmegaConf.resolve(loaded)
    except Exception as error:  # PyYAML and what it calls may raise anything
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"{path} cannot be read as YAML: {reason}.") from None
    if not isinstance(loaded, DictConfig):
        return loaded
    data = loaded.get("data")
    if isinstance(data, DictConfig) and isinstance(model := data.get("spm-model"), str):
        data["spm-model"] = str(path.parent / model)  # another folder's file may extend this one
    if extended := loaded.pop("extends", None):
        base = path.parent / str(extended)
        if not base.exists():
            raise ConfigError(f"{path} extends {base.absolute()}, which does not exist.")
        settings = read_yaml(base)
        if not isinstance(settings, DictConfig):
            raise ConfigError(f"{base} must hold sections, because {path} extends it.")
        try:
            return OmegaConf.merge(settings, loaded)
        except OmegaConfBaseException as error:
            reason = f"it extends: {first_line(error)}"
            raise ConfigError(f"{path} does not fit {base}, which {reason}.") from None
    return loaded


def _keys(section: type) -> list[str]:
    return [field.name.replace("_", "-") for field in fields(section)]


def key_name(full_key: str) -> str:
    """Return a key as files have it: ``budget: max-tokens`` for ``budget.max_tokens``."""
    return full_key.replace("_", "-").replace(".", ": ")


def _where(section: str) -> str:
    return f"`{key_name(section)}`" if section else "the file"


def _unknown_key(error: ConfigKeyError) -> str:
    section, key = str(error.full_key).rpartition(".")[0], key_name(str(error.key))
    known = _keys(error.object_type)
    near = difflib.get_close_matches(key, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(known)}."
    return f"{_where(section)} has the unknown key {shown(key)[1:-1]}; {advice}"


# Checks of rules that types cannot express; each raises ConfigError.


def check_missing(missing: Iterable[str]) -> None:
    """Refuse a file that lacks keys, such as ``budget.max_tokens`` or ``tasks.rte.lr``."""
    for section, _, key in sorted(name.rpartition(".") for name in missing):
        raise ConfigError(f"{_where(section)} has no `{key_name(key)}`.")


def require(holds: object, key: str, rule: str, value: object) -> None:
    """Refuse ``value`` of ``key`` unless ``holds``; ``rule`` completes "must be"."""
    if not holds:
        raise ConfigError(f"`{key}` must be {rule}, but is {shown(value)} instead.")


def check_rate(key: str, rate: object) -> None:
    """Refuse a learning rate that is not a number above 0."""
    require(isinstance(rate, (int, float)) and rate > 0, key, "a number above 0", rate)


def check_one_of(key: str, value: object, known: Iterable[object]) -> None:
    known = [*dict.fromkeys(known)]
    require(value in known, key, f"one of {', '.join(map(str, known))}", value)


def check_budget(budget: Any) -> None:
    for key in ("max_tokens", "tokens_per_update"):
        number = getattr(budget, key)
        require(number > 0, f"budget: {key_name(key)}", "a positive whole number", number)
