"""Kill commands at random moments, or take away their disk (`fault_disks.py`), and check the outcome.

Not a test file: `test_faults.py` and `test_faults_disk.py` use it. Nothing is mocked. A command runs in
its own folder, reads ``in`` and writes ``out``. Its process group gets the signal. What it left is
compared with what it leaves when nobody disturbs it.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import tally
import torch
from toy import environment

from fairseq_floater.checkpoints.reading import load_checkpoint

FLOATER = (sys.executable, "-m", "fairseq_floater")
# Kills in a row, without a finished run between them: a run starts from what the last kill left.
IN_A_ROW = 3
LONGEST_RUN = 900  # seconds; a command that hangs fails its test
PASSING = ("*.log", "*.part", "*.tmp", "*.lock", "stopped", "failed")


@dataclass(frozen=True)
class Tool:
    """A command to disturb, in words relative to the folder it runs in.

    ``older``: words of an earlier run with another result, which precedes every second row of kills.
    ``seal``: the file of ``out`` that says that all others are there. ``copied``: files that may be
    incomplete until the next start. ``varies``: files with seconds or dates, whose content is not compared.
    ``writing``: pattern of the files whose growth is awaited before a kill.
    """

    name: str
    words: tuple
    older: tuple = ()
    seal: str = ""
    copied: tuple = ()
    varies: tuple = ()
    writing: str = ""

    @property
    def title(self):
        """The command's name in a table."""
        return f"`scripts/{self.name}`" if self.name.endswith(".sh") else f"`floater {self.name}`"


# What a folder holds.


def fingerprint(path, varies=()):
    """Return a checksum of a checkpoint's tensors or another file's bytes. A broken file raises an error."""
    if path.suffix == ".pt":
        state = load_checkpoint(path)
        tensors = {"model": state["model"], "optimizer": state.get("last_optimizer_state")}
        digest = hashlib.sha256()
        _digest(tensors, digest)
        return digest.hexdigest()
    if any(fnmatch(path.name, pattern) for pattern in varies):
        if path.suffix == ".svg":
            assert path.read_text().endswith("</svg>\n"), path
        else:
            json.loads(path.read_text())
        return "whole"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(value, digest):
    if isinstance(value, dict):
        for key, inner in value.items():
            digest.update(str(key).encode())
            _digest(inner, digest)
    elif isinstance(value, list | tuple):
        for inner in value:
            _digest(inner, digest)
    elif isinstance(value, torch.Tensor):
        digest.update(str((value.dtype, tuple(value.shape))).encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def contents(folder, tool, *, hidden=False):
    """Return {name: fingerprint} of the files below ``out``, without temporary ones (:data:`PASSING`)."""
    out = folder / "out"
    found = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        passing = any(fnmatch(path.name, pattern) for pattern in PASSING)
        below_hidden = any(part.startswith(".") for part in path.relative_to(out).parts)
        if not passing and (hidden or not below_hidden):
            found[name] = fingerprint(path, tool.varies)
    return found


def names(folder):
    """Return the names of all files below ``out``, hidden ones too, except logs and locks."""
    out = folder / "out"
    found = {str(p.relative_to(out)) for p in out.rglob("*") if not p.is_dir()}
    return {name for name in found if not fnmatch(name, "*.log") and not fnmatch(name, "*.lock")}


# Running.


SHORT = tempfile.TemporaryDirectory(prefix="faults")


def start(tool, folder, words=None):
    """Start the command in its own process group; its messages go to ``messages`` beside ``out``."""
    with (folder / "messages").open("ab") as messages:
        return subprocess.Popen(
            [str(word) for word in words or tool.words],
            cwd=folder,
            # A killed script leaves its temporary files behind.
            env=environment(TMPDIR=str((folder / "tmp").resolve())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,
        )


def ended(process, timeout=LONGEST_RUN):
    """Wait for a command, then kill what is left of its process group; return its exit code."""
    try:
        return process.wait(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(tool, folder, words=None):
    """Run the command to its end; it must succeed."""
    code = ended(start(tool, folder, words))
    messages = (folder / "messages").read_text(errors="replace")
    assert code == 0, f"{tool.name}: exit code {code} in {folder}\n{messages[-3000:]}"


def fresh(place, inputs):
    """Make a new folder to run in, in place of an older one."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "out").mkdir(parents=True)
    # The path of a socket has at most 107 characters, which a folder of pytest-xdist exceeds.
    (place / "tmp").symlink_to(tempfile.mkdtemp(dir=SHORT.name))
    (place / "in").symlink_to(inputs)
    return place


def sizes(folder, pattern):
    """Return (size, modification time) of the files of ``out`` that match ``pattern``; "" matches all."""
    found = {}
    for parent, _, files in os.walk(folder / "out"):
        for name in files:
            if not pattern or fnmatch(name, pattern):
                with contextlib.suppress(OSError):
                    status = os.stat(os.path.join(parent, name))  # noqa: PTH116, PTH118  often
                    found[parent, name] = status.st_size, status.st_mtime_ns
    return found


def await_change(process, folder, pattern):
    """Return as soon as the command has changed a file or has ended."""
    before = sizes(folder, pattern)
    while process.poll() is None and sizes(folder, pattern) == before:
        time.sleep(0.0005)


# Killing.


@dataclass
class Undisturbed:
    """What an undisturbed tool leaves, how long it takes, and how long after its first write."""

    contents: dict
    names: set
    seconds: float
    writing: float
    older: dict


def undisturbed(tool, place, inputs):
    folder = fresh(place, inputs)
    older = {}
    if tool.older:
        finish(tool, folder, tool.older)
        older = contents(folder, tool)
    begun = time.monotonic()
    process = start(tool, folder)
    await_change(process, folder, tool.writing)
    first = time.monotonic()
    assert ended(process) == 0, (folder / "messages").read_text(errors="replace")[-3000:]
    end = time.monotonic()
    found = contents(folder, tool, hidden=True)
    assert found and found != older, "a command that changes nothing shows nothing"
    return Undisturbed(found, names(folder), end - begun, end - first, older)


def kill_once(tool, folder, whole, number, moment):
    """Signal one run at ``moment`` (0 to 1); return the signal, or None if the run had ended before."""
    which = signal.SIGKILL if number % 2 else signal.SIGTERM
    if tool.writing:
        moment *= 0.6  # a script resumes, so that its rest is shorter
    process = start(tool, folder)
    if number % 4 < 2:
        _pass(process, moment * whole.seconds)
    elif tool.writing:
        # A run that writes often: wait for any moment in it, then for the next write.
        _pass(process, moment * whole.seconds)
        await_change(process, folder, tool.writing)
        _pass(process, 0.02 * moment)
    else:
        await_change(process, folder, "")
        _pass(process, moment * whole.writing)
    met = process.poll() is None
    if met:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, which)
    ended(process, timeout=120)
    return which if met else None


def _pass(process, seconds):
    """Wait for ``seconds``, or until the command ends."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def check_nothing_half(tool, folder, whole):
    """Check that every result is absent, the old one, or complete."""
    out = folder / "out"
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        patterns = (*PASSING, *tool.copied)
        if any(part.startswith(".") for part in Path(name).parts):
            continue
        if any(fnmatch(path.name, pattern) for pattern in patterns):
            continue
        allowed = {whole.older.get(name), whole.contents.get(name)}
        assert fingerprint(path, tool.varies) in allowed, f"{tool.name}: {path} is half-written"
    if tool.seal and (out / tool.seal).exists():
        assert contents(folder, tool) in (whole.older, _visible(whole.contents)), tool.name


def _visible(found):
    return {n: f for n, f in found.items() if not any(p.startswith(".") for p in Path(n).parts)}


def check_the_same(tool, folder, whole):
    """Check that the restarted command has left what the undisturbed one leaves, and nothing else."""
    found = contents(folder, tool, hidden=True)
    different = [n for n in whole.contents if found.get(n) != whole.contents[n]]
    assert not different, f"{tool.name}: {different} in {folder}"
    left = names(folder) ^ whole.names
    assert not left, f"{tool.name}: {sorted(left)} in {folder}"


def kill_and_restart(tool, place, inputs, kills, seed=1):
    """Kill ``kills`` times and restart after each row of :data:`IN_A_ROW`; return {signal: kills}."""
    whole = undisturbed(tool, place / "whole", inputs)
    moments = random.Random(seed)
    counts = {signal.SIGKILL: 0, signal.SIGTERM: 0}
    done = tried = rows = 0
    while done < kills:
        folder = fresh(place / "killed", inputs)
        if tool.older and rows % 2:
            finish(tool, folder, tool.older)
        rows += 1
        for _ in range(min(IN_A_ROW, kills - done)):
            # One random moment in each of 16 equal parts of the run; the parts come in mixed order.
            moment = (tried * 7 % 16 + moments.random()) / 16
            met = kill_once(tool, folder, whole, tried, moment)
            tried += 1
            assert tried < 4 * kills + 10, f"{tool.name} ends before it can be killed"
            if met is not None:
                counts[met] += 1
                done += 1
                tally.count("kills", tool.title, met.name)
            check_nothing_half(tool, folder, whole)
        begun = time.monotonic()
        finish(tool, folder)
        if not tool.writing:
            whole.seconds = time.monotonic() - begun
        check_the_same(tool, folder, whole)
    shutil.rmtree(place / "killed")
    return {which.name: count for which, count in counts.items()}
