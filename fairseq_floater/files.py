"""Write files and folders whole or not at all, and compare them by checksums."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Reading the umask sets it for a moment, so it is read before threads run systems side by side.
_UMASK = os.umask(0)
os.umask(_UMASK)
# The folder for fairseq's `--user-dir`.
USER_DIR = Path(__file__).resolve().parent


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it to ``path``.

    A pipe, a device or a descriptor (``/dev/stdout``) is written to instead of being replaced.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if str(path).startswith(("/dev/std", "/dev/fd/", "/proc/")) or (
        path.exists() and not path.is_file()
    ):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / path.name
            write(temporary)
            sys.stdout.flush()  # what was printed before comes first
            with path.open("ab", buffering=0) as sink:
                sink.write(temporary.read_bytes())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), _temporary_beside(path) as (file, temporary):
        write(temporary)
        os.fsync(file)
        temporary.chmod(0o666 & ~_UMASK)  # mkstemp's files are private
        temporary.replace(path)


@contextmanager
def _temporary_beside(path: Path) -> Iterator[tuple[int, Path]]:
    """Make a locked file beside ``path``, and remove those that killed processes left there."""
    prefix = f".{path.name}.part-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError), left.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            left.unlink(missing_ok=True)
    try:
        file, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file, Path(name)
    finally:
        os.close(file)
        with suppress(OSError):  # on a file system that has become read-only, it stays
            Path(name).unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add ``path`` to an OSError that names no file, such as the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None


def remove_folder(folder: Path) -> None:
    """Delete a folder if it exists. A process killed meanwhile leaves the whole folder or nothing."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone)


def put_folder(work: Path, folder: Path) -> None:
    """Replace ``folder`` by the finished ``work``, after an fsync of all its files."""
    for path in work.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    remove_folder(folder)
    work.rename(folder)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text so that it is whole or absent; undecodable bytes (of file names) are escaped."""
    write_whole(path, lambda temporary: temporary.write_text(text, "utf-8", "backslashreplace"))


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
