"""Files: written whole or not at all, told apart by checksums; and where the plugin is."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What fairseq's `--user-dir` is given.
USER_DIR = Path(__file__).resolve().parent


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one step."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's files are private; outputs are ordinary files
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text so that it is there whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def file_hash(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file's bytes, in hexadecimal; ``kind`` is a name of hashlib's."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
