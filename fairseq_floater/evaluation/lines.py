"""The lines of a text file, read when they are asked for: any number of them takes the same memory.

Where each line begins stands in a temporary file without a name, eight bytes a line.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, overload

from fairseq_floater.data.parallel_text import LONGEST_LINE
from fairseq_floater.errors import UserError

_BYTES = 8
_BLOCK = 8192


FilePath = str | os.PathLike[str]


class ScoringError(UserError):
    """Input that cannot be scored honestly; the message is one sentence for a person."""


def wrong(rule: str, found: str, hint: str = "") -> ScoringError:
    """The error for ``rule`` where ``found`` was found."""
    return ScoringError(f"{rule}, but {found} instead{hint or '.'}")


class Numbers:
    """Whole numbers below 2^63 by their index from 0, on disk; 0 where none was put."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  as long as the numbers

    def __getitem__(self, index: int) -> int:
        data = os.pread(self._file.fileno(), _BYTES, _BYTES * index)
        return int.from_bytes(data, sys.byteorder)

    def __setitem__(self, index: int, number: int) -> None:
        data = number.to_bytes(_BYTES, sys.byteorder)
        try:
            os.pwrite(self._file.fileno(), data, _BYTES * index)
        except OSError as error:  # a full disk names no file
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from None

    def first(self, count: int) -> Iterator[int]:
        """Those with the indices 0 to ``count - 1``, in order."""
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            data = os.pread(self._file.fileno(), _BYTES * size, _BYTES * start)
            yield from memoryview(data.ljust(_BYTES * size, b"\0")).cast("q")


class Line(NamedTuple):
    """A line of a file: its number from 1, where it begins, and its bytes without their end."""

    number: int
    place: int
    data: bytes


class TextFile:
    r"""A UTF-8 file that is read more than once: split at ``\n`` alone, less a BOM and ``\r`` at ends.

    A pipe is copied to a temporary file first.

    Raises:
        ScoringError: the file cannot be read.
    """

    def __init__(self, path: FilePath):
        self.path = path
        try:
            file: BinaryIO = open(path, "rb")  # noqa: SIM115, PTH123  as long as its lines
            if not file.seekable():
                copy = tempfile.TemporaryFile()  # noqa: SIM115
                with file:
                    shutil.copyfileobj(file, copy)
                copy.flush()
                file = copy
            self._file, self._state = file, self._now(file)
        except OSError as error:
            raise self._unreadable(error) from None

    def _now(self, file: BinaryIO) -> tuple[int, int]:
        status = os.fstat(file.fileno())
        return status.st_size, status.st_mtime_ns

    def _unreadable(self, error: OSError) -> ScoringError:
        return wrong(f"`{self.path}` must be a readable file", f"gives {error.strerror!r}")

    def __iter__(self) -> Iterator[Line]:
        """Every line; raises ScoringError for one that is no UTF-8, or too long to be text."""
        try:
            self._file.seek(0)
            has_mark = self._file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
            place, number = len(codecs.BOM_UTF8) * has_mark, 0
            while data := self._read(place):
                number += 1
                self._check(data, number)
                yield Line(number, place, _without_end(data))
                place += len(data)
        except OSError as error:
            raise self._unreadable(error) from None

    def _check(self, data: bytes, number: int) -> None:
        if len(data) > LONGEST_LINE:
            rule = f"`{self.path}` must have lines of at most {LONGEST_LINE:,} bytes"
            raise wrong(rule, f"line {number} is longer")
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"line {number} holds the byte 0x{data[error.start]:02x}"
            # The reason at the end of a file alone: a line's end would be more data.
            hint = "; was it cut off?" if error.reason == "unexpected end of data" else ""
            raise wrong(f"`{self.path}` must be UTF-8", found, hint) from None

    def _read(self, place: int) -> bytes:
        # Within its buffer a seek costs nothing; others may have read elsewhere in between.
        self._file.seek(place)
        return self._file.readline(LONGEST_LINE + 1)

    def text(self, place: int) -> str:
        """From ``place``, which an earlier reading found, to the end of the line."""
        try:
            return _without_end(self._read(place)).decode("utf-8")
        except UnicodeDecodeError:  # it was valid, and began elsewhere
            raise self._changed() from None

    def ends_in_newline(self) -> bool:
        """Whether the last line has its end."""
        size, _ = self._state
        return size > 0 and os.pread(self._file.fileno(), 1, size - 1) == b"\n"

    def check_unchanged(self) -> None:
        """Raises ScoringError if another process has written to the file since it was opened."""
        if self._now(self._file) != self._state:
            raise self._changed()

    def _changed(self) -> ScoringError:
        return wrong(f"`{self.path}` must stay as it is while it is read", "was written to")


def _without_end(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")


class TextLines(Sequence[str]):
    """Lines of a file in an order of their own.

    Args:
        file: where they are.
        places: where each begins, by its index.
        count: how many there are.
        change: what is done to each when it is read.
    """

    def __init__(
        self,
        file: TextFile,
        places: Numbers,
        count: int,
        change: Callable[[str], str] | None = None,
    ):
        self._file, self._places, self._count, self._change = file, places, count, change

    def changed(self, change: Callable[[str], str]) -> TextLines:
        """The same lines, with ``change`` done to each when it is read."""
        return TextLines(self._file, self._places, self._count, change)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._line(self._places[index])

    def __iter__(self) -> Iterator[str]:
        for place in self._places.first(self._count):
            yield self._line(place)
        self._file.check_unchanged()

    def _line(self, place: int) -> str:
        text = self._file.text(place)
        return self._change(text) if self._change else text
