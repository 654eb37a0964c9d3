"""Read text strictly: UTF-8, one sentence per line; errors name the file and the line."""

from __future__ import annotations

import codecs
import math

from fairseq_floater.data.parallel_text import LONGEST_LINE, FilePath, byte_lines
from fairseq_floater.errors import UsageError, UserError


class ScoringError(UserError):
    """Input that cannot be scored honestly; the message is one sentence for a person."""


class ScoringOptionError(ScoringError, UsageError):
    """An option of scoring that makes no sense."""


def scoring_error(rule: str, fault: str, hint: str = "", *, option: bool = False) -> ScoringError:
    """Return the error for input that breaks a rule.

    Args:
        rule: what must hold, as in "`path` must be UTF-8".
        fault: what holds instead, as in "line 2 holds the byte 0xfc".
        hint: the remedy, with its punctuation.
        option: whether the rule is about an option.
    """
    kind = ScoringOptionError if option else ScoringError
    return kind(f"{rule}, but {fault} instead{hint or '.'}")


class TextFile:
    r"""The lines of a UTF-8 file, split at ``\n`` alone, without a BOM and without ``\r`` at their ends.

    A name that ends in .gz means gzip. A file is read once and kept in memory, so it may be a pipe.

    Attributes:
        ends_in_newline: whether the last line ends in a newline.
    """

    def __init__(self, path: FilePath):
        self.path = path
        self.lines: list[str] = []
        data = b""
        try:
            for data in byte_lines(path, ScoringError):
                self.lines.append(self._decode(data).removesuffix("\n").removesuffix("\r"))
        except FileNotFoundError:
            raise ScoringError(f"There is no file {path}.") from None
        except OSError as error:
            rule = f"`{path}` must be a readable file"
            raise scoring_error(rule, f"gives {error.strerror!r}") from None
        self.ends_in_newline = data.endswith(b"\n")

    def _decode(self, data: bytes) -> str:
        number = len(self.lines) + 1
        if len(data) > LONGEST_LINE:
            rule = f"`{self.path}` must have lines of at most {LONGEST_LINE:,} bytes"
            raise scoring_error(rule, f"line {number} is longer")
        try:
            return (data.removeprefix(codecs.BOM_UTF8) if number == 1 else data).decode("utf-8")
        except UnicodeDecodeError as error:
            fault = f"line {number} holds the byte 0x{error.object[error.start]:02x}"
            raise scoring_error(f"`{self.path}` must be UTF-8", fault) from None


def read_numbers(path: FilePath, size: int) -> list[float]:
    """Return the ``size`` numbers of a file with one finite number per line.

    Raises:
        ScoringError: the file has another number of lines, or a line is not a finite number.
    """
    lines = TextFile(path).lines
    if len(lines) != size:
        rule = f"`{path}` must have one number for each of {size} sentences"
        raise scoring_error(rule, f"has {len(lines)} lines")
    numbers = []
    for number, line in enumerate(lines, 1):
        try:
            numbers.append(float(line))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            rule = f"`{path}` must have a finite number on each line"
            raise scoring_error(rule, f"line {number} has {line[:40]!r}")
    return numbers
