"""Fetch and read SCAN (Lake and Baroni 2018): commands, and the actions that carry them out."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from fairseq_floater.data.parallel_text import TextDataError, byte_lines
from fairseq_floater.data.task_generators import Example
from fairseq_floater.data.wmt14.sources import Archive, listed
from fairseq_floater.files import USER_DIR

TASKS_FILE = Archive(
    "tasks.txt",
    "https://raw.githubusercontent.com/brendenlake/SCAN/master/tasks.txt",
    "d824c7d9e9149ba497e25f701981dac79954e04bf670d22e5c209f076ac6c89f",
)


def fetch_scan(folder: Path) -> Path:
    """Fetch the file into ``folder`` by `fetch_all` of `scripts/common.sh`, unless it exists."""
    script = USER_DIR.parent / "scripts" / "common.sh"
    line = listed(TASKS_FILE, folder, None, check=True)
    command = ["bash", "-c", 'source "$0" && fetch_all "$1"', str(script), line]
    if not script.is_file() or subprocess.run(command, check=False).returncode:
        raise TextDataError(
            f"SCAN could not be fetched; download {TASKS_FILE.url} yourself and pass it with `--from FILE`."
        )
    return folder / TASKS_FILE.name


def read_scan(path: Path) -> list[Example]:
    """Return every pair of tasks.txt (or .gz) in its order; the length is the number of actions.

    Raises:
        TextDataError: the file is not SCAN's tasks.txt.
    """
    content = b"".join(byte_lines(path, TextDataError))
    if (digest := hashlib.sha256(content).hexdigest()) != TASKS_FILE.sha256:
        raise TextDataError(
            f"{path} must be SCAN's tasks.txt with the SHA-256 {TASKS_FILE.sha256}, but has {digest}."
        )
    pairs = (line.removeprefix("IN: ").split(" OUT: ") for line in content.decode().splitlines())
    sides = ((command.split(), actions.split()) for command, actions in pairs)
    return [Example(command, actions, len(actions)) for command, actions in sides]
