"""Lock the files beside a run, so that no two processes train it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL = 0.5  # seconds between two tries of a lock that another run holds


def try_lock(
    path: Path, kind: int = fcntl.LOCK_EX, mode: int = os.O_RDWR | os.O_CREAT
) -> int | None:
    """Lock a file and return its descriptor; None if another process or thread holds the lock.

    A process that inherits the descriptor holds the lock too, so a training that outlives a killed
    script is not started twice. On a file system without locks, every caller gets the lock.
    """
    handle = os.open(path, mode, 0o666)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        pass
    return handle


def is_locked(path: Path) -> bool:
    """Return whether a run holds a lock. The check asks for a shared lock, so checks can overlap."""
    if not os.access(path, os.R_OK):
        return False
    handle = try_lock(path, fcntl.LOCK_SH, os.O_RDONLY)  # the file may be a colleague's
    if handle is not None:
        os.close(handle)  # gives the lock back
    return handle is None


class Locks:
    """The locks of a run. The commands that it starts and the runs that are part of it hold them too.

    Args:
        wait: waits for a number of seconds; raises StoppedError if the process is told to stop.
    """

    def __init__(self, wait: Callable[[float], None]):
        self._wait = wait
        self.descriptors: list[int] = []
        #: seconds spent waiting for other runs
        self.waited = 0.0

    @contextmanager
    def hold(
        self, path: Path, seconds: float, waiting: Callable[[], None] | None = None
    ) -> Iterator[bool]:
        """Hold a lock; yields False if another process still has it after ``seconds``.

        ``waiting`` is called once, when the wait begins.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        clock, lock = time.monotonic(), try_lock(path)
        if lock is None and waiting is not None:
            waiting()
        while lock is None and seconds > 0:
            self._wait(_POLL)
            seconds -= _POLL
            lock = try_lock(path)
        self.waited += time.monotonic() - clock
        if lock is None:
            yield False
            return
        self.descriptors.append(lock)
        try:
            yield True
        finally:
            self.descriptors.remove(lock)
            os.close(lock)
