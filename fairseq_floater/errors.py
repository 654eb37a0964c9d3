"""Errors that a user can cause, and their form on a terminal.

`floater` prints them, and exits with 2 for bad usage, else with 1.
"""

import contextlib
import io
import reprlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


class UserError(Exception):
    """An error that a user can cause and mend; its message is one sentence for a person."""


class UsageError(UserError, ValueError):
    """Options or a configuration that make no sense."""


class ReportError(UserError, ValueError):
    """Results that are missing or cannot be read."""


# Longer than a sentence that names two paths.
_LONGEST = 1_400


class _ShortRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of thousands of digits.
        return repr(x) if x.bit_length() <= 256 else f"a number of {x.bit_length()} bits"


def shown(value: object) -> str:
    """Quote a wrong value in a message: its repr, cut where it is long or nested."""
    return _ShortRepr().repr(value)


def sentence(error: BaseException, place: object = None) -> str:
    """Return an error's message; a fault of the system names its file, or ``place``, first."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    name = error.filename or place
    return f"{name}: {error.strerror}." if name else f"{error.strerror}."


def one_line(message: object) -> str:
    """Escape and shorten a message, so that names and files that it quotes cannot break a terminal."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 500]} ... {text[-500:]}"


@contextlib.contextmanager
def refused_options(rule: str) -> Iterator[None]:
    """Raise argparse's message as a UsageError that begins with ``rule``, instead of exiting."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            yield
    except SystemExit:
        reason = message.getvalue().strip().rpartition("error: ")[2]
        raise UsageError(f"{rule}: {reason}.") from None


def exit_code(action: Callable[[], object], place: Path) -> int:
    """Run the command line of a module that scripts call; print a user's error as one sentence.

    ``place`` is named where a fault of the system names no file.
    """
    try:
        action()
    except (UserError, OSError) as error:
        print(one_line(sentence(error, place)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return 0
