"""The errors that a user can cause, and how they are shown.

`floater` prints them, and exits with 2 for bad usage, else with 1.
"""

import reprlib
import sys
from collections.abc import Callable
from pathlib import Path


class UserError(Exception):
    """What a user can cause and mend; the message is one sentence for a person."""


class UsageError(UserError, ValueError):
    """Options or a configuration that make no sense."""


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
    """A wrong value as a message quotes it: its repr, cut where it is long or nested."""
    return _ShortRepr().repr(value)


def sentence(error: BaseException, place: object = None) -> str:
    """What an error says; a fault of the system names its file, or ``place``, first."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    name = error.filename or place
    return f"{name}: {error.strerror}." if name else f"{error.strerror}."


def one_line(message: object) -> str:
    """A message for a terminal: what it quotes of names and files can neither break nor flood it."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 500]} ... {text[-500:]}"


def exit_code(action: Callable[[], object], place: Path) -> int:
    """Of the command line of a module that scripts run: what a user can cause is said in a sentence.

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
