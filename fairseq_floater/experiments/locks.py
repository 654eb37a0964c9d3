"""Lock the files beside a run, so that no two processes train it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(path: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Lock a file and return its descriptor; None where another process or thread holds the lock.

    Whoever inherits the descriptor holds the lock too: a training that outlives a killed script
    is not begun twice. On a file system without locks everyone gets it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        pass
    return handle


def is_locked(path: Path) -> bool:
    """Return whether a run holds a lock; asked for as shared, so that looking keeps nobody waiting."""
    if not os.access(path, os.W_OK):
        return False
    handle = try_lock(path, fcntl.LOCK_SH)
    if handle is not None:
        os.close(handle)  # gives the lock back
    return handle is None
