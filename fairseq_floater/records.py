"""Read results back from JSON, and show them as Markdown tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError as ReportError


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; raises ReportError where it is no JSON in UTF-8."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path} is no readable JSON: {error}.") from None


def check_fields(path: Path, found: Any, required: Mapping[str, type]) -> dict[str, Any]:
    """Return the object that ``path`` holds; raises ReportError where a field is of another kind."""
    if not isinstance(found, dict):
        raise ReportError(f"{path} must hold an object, but holds {type(found).__name__}.")
    for name, kind in required.items():
        if not isinstance(found.get(name), kind):
            raise ReportError(
                f"{path}: `{name}` must be {kind.__name__}, but is {found.get(name)}."
            )
    return found


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]
