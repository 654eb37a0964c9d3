"""Read results back from JSON, and show them as Markdown tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError as ReportError


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; raises ReportError where it is no JSON in UTF-8."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path} is no readable JSON: {error}.") from None


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]
