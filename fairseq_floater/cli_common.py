"""What the verbs of `floater` are declared with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any


def add_verb(
    verbs: Any, name: str, summary: str, example: str, run: Callable[[argparse.Namespace], Any]
) -> argparse.ArgumentParser:
    """A verb with its help, an example, ``--json``, and the function that does it."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON as well")
    return parser


def positive(text: str) -> int:
    """The type of an option that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, but is {text!r}")
    return int(text)


def share(text: str) -> float:
    """The type of an option that is a share, above 0 and at most 1."""
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, but is {text!r}")
    return float(text)
