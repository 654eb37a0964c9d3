"""Files: written whole or not at all, read whole within limits, told apart by checksums."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UserError

# Larger than any JSON of ours (WMT14's archives and splits take kilobytes).
LARGEST_JSON = 1 << 26
_DEEPEST_JSON = 32
# Asking sets it, which must not meet the threads that run systems side by side.
_UMASK = os.umask(0)
os.umask(_UMASK)
_DESCRIPTOR = re.compile(r"/dev/std(out|err)|/(dev|proc/(self|\d+))/fd/\d+")
# What fairseq's `--user-dir` is given.
USER_DIR = Path(__file__).resolve().parent


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one step."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _DESCRIPTOR.fullmatch(str(path)) or (path.exists() and not path.is_file()):
        _append(path, write)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        handle, temporary = _beside(path)
        try:
            write(temporary)
            os.fsync(handle)
            temporary.chmod(0o666 & ~_UMASK)  # mkstemp's files are private; outputs are ordinary
            temporary.replace(path)
        finally:
            os.close(handle)
            with suppress(OSError):  # on a file system that is read-only by now, it stays
                temporary.unlink(missing_ok=True)


def _append(path: Path, write: Callable[[Path], Any]) -> None:
    """To a pipe, a device, or /dev/stdout whatever it is: to be written to, not to be replaced."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        write(temporary)
        sys.stdout.flush()  # what was printed before comes before
        with temporary.open("rb") as source, path.open("ab", buffering=0) as sink:
            shutil.copyfileobj(source, sink)


def _beside(path: Path) -> tuple[int, Path]:
    """A new file beside ``path``, open and locked, in the place of those that killed processes left."""
    prefix = f".{path.name}.part-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError), left.open("rb") as file:
            # Another process that writes the same file holds the lock of its own.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink(missing_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    with suppress(OSError):  # some network file systems have no locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle, Path(name)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A fault of the system that names no file, as a full disk does not, names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there, so that a kill meanwhile leaves all of it or none."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone)


def put_folder(work: Path, folder: Path) -> None:
    """Put a finished folder in the place of an old one, its files on the disk first."""
    for path in work.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    remove_folder(folder)
    work.rename(folder)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text so that it is there whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_limited(path: str | os.PathLike[str], largest: int) -> bytes:
    """All of a file that is known to be small: another one, or a device, must not fill the memory.

    Raises:
        UserError: it is larger than ``largest`` bytes.
    """
    with Path(path).open("rb") as file:
        size, data = os.fstat(file.fileno()).st_size, bytearray()
        while size <= largest and (piece := file.read(1 << 20)):
            data += piece
            size = len(data)  # of a pipe or a device, which have none of their own
        if size > largest:
            raise UserError(f"`{path}` must hold at most {largest:,} bytes, but holds more.")
    return bytes(data)


def read_json(path: str | os.PathLike[str]) -> Any:
    """What a tool of ours wrote.

    Raises:
        OSError: it cannot be read.
        UserError: it is larger than :data:`LARGEST_JSON`.
        ValueError: it is no JSON in UTF-8, or nested deeper than anything of ours.
    """
    try:
        found = json.loads(read_limited(path, LARGEST_JSON).decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [found]
    for _ in range(_DEEPEST_JSON):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ValueError("it is nested too deeply")
    # Half a character ("\\ud800") is JSON, but can neither be printed nor written.
    json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found


def file_hash(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file's bytes, in hexadecimal; ``kind`` is a name of hashlib's."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
