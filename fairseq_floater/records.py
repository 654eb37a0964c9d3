"""Read results back from JSON, and show them as Markdown tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError, shown

NUMBER = float | int


def read_json(path: str | os.PathLike[str], shape: Any = object) -> Any:
    """Read a JSON file; raises ReportError if it is not JSON in UTF-8 or has another ``shape``.

    A shape is a type, a list that holds one shape, or a dictionary of shapes. The key ``...`` stands for
    every key, and a key that ends in ``?`` may be missing.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is no readable JSON: {error}.") from None
    _check(content, shape, f"{path}: the content")
    return content


def _check(value: Any, shape: Any, place: str) -> None:
    kind = type(shape) if isinstance(shape, (dict, list)) else shape
    if not isinstance(value, kind):
        name = getattr(kind, "__name__", kind)
        raise ReportError(f"{place} must be of type {name}, but is {shown(value)} instead.")
    if isinstance(shape, list):
        for entry in value:
            _check(entry, shape[0], f"an entry of {place}")
    elif isinstance(shape, dict):
        for key, inner in (dict.fromkeys(value, shape[...]) if ... in shape else shape).items():
            name = key.removesuffix("?")
            if name in value or name == key:
                _check(dict(value).get(name), inner, f"{place}, `{name}`")


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object and refuse a repeated key, which would hide one of its values.

    Raises:
        ReportError: not JSON in UTF-8 (a BOM may come first), not an object, or a key comes twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise ReportError(f"{path} has {shown(key)} twice.")
            content[key] = value
        return content

    text = Path(path).read_bytes()
    try:
        content = json.loads(text.decode("utf-8-sig"), object_pairs_hook=unique)
    except ReportError:
        raise
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is no readable JSON: {str(error).rstrip('.')}.") from None
    if not isinstance(content, dict):
        raise ReportError(f"{path} must hold a JSON object, but holds {shown(content)} instead.")
    return content


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]
