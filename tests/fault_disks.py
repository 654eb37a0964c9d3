"""File systems that fill up, become read-only or vanish, for machines where a test may mount any."""

import contextlib
import subprocess
from pathlib import Path

import pytest


def mount(*words):
    """Run `mount WORDS`; skip the test if mounting is not allowed."""
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def unmount(folder):
    """Unmount lazily, which works even if a process still has a file open there."""
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def small_disk(folder, size):
    """Mount a file system of ``size`` bytes at ``folder``; ``remount(folder, "size=..")`` makes room."""
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield
    finally:
        unmount(folder)


@contextlib.contextmanager
def immutable(folder):
    """Make a folder take no new file; `remount,ro` fails while files are open there."""
    done = subprocess.run(["chattr", "+i", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"chattr +i does not work here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


@contextlib.contextmanager
def losable(folder, disk):
    """Mount ``disk`` at ``folder``, over a read-only empty file system; ``unmount`` makes it vanish."""
    disk.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "ro,size=32m", "tmpfs", folder)
    try:
        mount("--bind", disk, folder)
        yield
    finally:
        # Path.is_mount misses a folder that is bound to another of the same file system.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1] == str(folder):
                unmount(folder)
