"""Reading back what the tools wrote as JSON, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_floater import files
from fairseq_floater.errors import UserError, shown

_KINDS = {int: "a whole number", float: "a number", str: "text"}
_LARGEST = 1e18


class ReportError(UserError):
    """Results that are missing or cannot be read."""


def read_json(path: Path) -> Any:
    """What a tool wrote; raises ReportError where it cannot be read."""
    try:
        return files.read_json(path)
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is no readable JSON: {error}.") from None


def check_fields(
    path: Path, found: Any, required: Mapping[str, type], further: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """What ``path`` holds, if it is an object whose fields are of the kinds that tables show.

    Args:
        required: the kind of each field that must be there: int, float (any finite number) or str;
            ``bleu.score`` is the field ``score`` of the object ``bleu``.
        further: of those that may be missing or null.

    Raises:
        ReportError: it is no object, or a field is missing or of another kind.
    """
    if not isinstance(found, dict):
        raise ReportError(f"{path} must hold an object, but holds {type(found).__name__}.")
    for name, kind in {**required, **(further or {})}.items():
        value: Any = found
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not (_is_of(kind, value) or (value is None and name not in required)):
            raise ReportError(f"{path}: `{name}` must be {_KINDS[kind]}, but is {shown(value)}.")
    return found


def _is_of(kind: type, value: Any) -> bool:
    if kind is str:
        return isinstance(value, str)
    numbers = (int, float) if kind is float else int
    if isinstance(value, bool) or not isinstance(value, numbers):
        return False
    # Larger ones, infinity and NaN are no results, and no table could format them.
    return bool(abs(value) < _LARGEST)
