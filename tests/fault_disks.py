"""Disks that fill up, lock or vanish: real file systems, for a test, where this machine lets us mount any."""

import contextlib
import subprocess
from pathlib import Path

import pytest


def mount(*words):
    """`mount WORDS`; skips the test where this machine does not let us."""
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def unmount(folder):
    """Lazily: also where a process still has a file open there."""
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of ``size`` bytes at ``folder``; ``remount(folder, "size=..")`` makes room."""
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield
    finally:
        unmount(folder)


@contextlib.contextmanager
def immutable(folder):
    """A folder that takes no new file: what `remount,ro` cannot do while files are open there."""
    done = subprocess.run(["chattr", "+i", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"chattr +i does not work here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


@contextlib.contextmanager
def losable(folder, disk):
    """``disk`` mounted at ``folder``, and below it next to nothing, read-only: ``unmount`` loses it."""
    disk.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "ro,size=32m", "tmpfs", folder)
    try:
        mount("--bind", disk, folder)
        yield
    finally:
        # Not Path.is_mount, which misses a folder bound to another of the same file system.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1] == str(folder):
                unmount(folder)
