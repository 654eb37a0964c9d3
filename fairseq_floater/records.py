"""Write and read results as JSON, and show them as Markdown tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError, shown
from fairseq_floater.files import write_text

NUMBER = float | int
# The record of a run, in its folder.
RECORD = "run.json"


def read_json(path: str | os.PathLike[str], shape: Any = object) -> Any:
    """Read a JSON file in UTF-8; a byte-order mark may come first.

    A shape is a type, a list that holds one shape, or a dictionary of shapes. The key ``...`` stands for
    every key, and a key that ends in ``?`` may be missing.

    Raises:
        ReportError: it is not JSON, or has another ``shape``.
    """
    text = Path(path).read_bytes()
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} cannot be read as JSON: {str(error).rstrip('.')}.") from None
    check_shape(content, shape, f"{path}: the content")
    return content


def write_json(path: str | os.PathLike[str], content: Any, *, sort_keys: bool = False) -> None:
    """Write JSON in UTF-8, whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=sort_keys)
    write_text(path, text + "\n")


def check_shape(value: Any, shape: Any, where: str) -> None:
    """Raise ReportError unless ``value``, which ``where`` names, has a ``shape`` as in :func:`read_json`."""
    kind = type(shape) if isinstance(shape, (dict, list)) else shape
    if not isinstance(value, kind):
        name = getattr(kind, "__name__", kind)
        raise ReportError(f"{where} must be of type {name}, but is {shown(value)} instead.")
    if isinstance(shape, list):
        for entry in value:
            check_shape(entry, shape[0], f"an entry of {where}")
    elif isinstance(shape, dict):
        for key, inner in (dict.fromkeys(value, shape[...]) if ... in shape else shape).items():
            name = key.removesuffix("?")
            if name in value or name == key:
                check_shape(dict(value).get(name), inner, f"{where}, `{name}`")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in (heads, *rows))
    lines = [f"| {' | '.join(cells)} |" for cells in escaped]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]
