"""Errors that a user can cause, and their form on a terminal.

`floater` prints them, and exits with 2 for bad usage, else with 1.
"""

import argparse
import reprlib
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar


class UserError(Exception):
    """An error that a user can cause and mend; its message is one sentence for a person."""


class UsageError(UserError, ValueError):
    """Options or a configuration that make no sense."""


class ReportError(UserError, ValueError):
    """Results that are missing or cannot be read."""


# Characters of a message. A sentence that names two paths is shorter.
_LONGEST = 1_400
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_Parsed = TypeVar("_Parsed")


def shown(value: object) -> str:
    """Return the repr of a wrong value for a message, cut if it is long or nested."""
    return _SHORT.repr(value)


def sentence(error: BaseException) -> str:
    """Return an error's message. For an OSError, this is the file and then the reason."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."


def say(message: str) -> None:
    """Print a line of progress to stderr."""
    print(message, file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop, or the error's kind."""
    return (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")


def one_line(message: object) -> str:
    """Escape and shorten a message, so that names and files that it quotes cannot break a terminal."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 500]} ... {text[-500:]}"


def parsed(
    parser: argparse.ArgumentParser, parse: Callable[[argparse.ArgumentParser], _Parsed], rule: str
) -> _Parsed:
    """Call ``parse(parser)``, which raises argparse's message as a UsageError that begins with ``rule``."""

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{rule}: {message}.")

    parser.error = refuse  # type: ignore[method-assign]
    try:
        return parse(parser)
    except SystemExit:  # fairseq reads --user-dir by another parser
        raise UsageError(f"{rule}: --help and --user-dir must be left out.") from None
