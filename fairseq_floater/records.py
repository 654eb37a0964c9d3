"""Read results back from JSON, and show them as Markdown tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError, shown


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; raises ReportError where it is no JSON in UTF-8."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path} is no readable JSON: {error}.") from None


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object; a key that an object in it holds twice would hide one of its values.

    Raises:
        ReportError: no JSON in UTF-8 (a BOM may lead), no object, or a key comes twice.
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
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]
