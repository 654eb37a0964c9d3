"""What `floater info --check` asks of a machine: packages, commands, GPUs, memory, a folder to write to."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fairseq_floater.figures import quieten_matplotlib

OK, NOTE, MISSING = "ok", "note", "missing"


GB = 10**9


# Distribution -> its module. fairseq's is one of two distributions.
PACKAGES = {
    **{name: name for name in ("torch", "fairseq", "torchdiffeq", "sacrebleu", "sentencepiece")},
    **{name: name for name in ("sacremoses", "num2words", "matplotlib", "tqdm")},
    **{"subword-nmt": "subword_nmt", "PyYAML": "yaml"},
}


OLDEST_BASH = (4, 4)  # empty arrays under `set -u`


# Command -> what its absence means, and what to do.
COMMANDS = {
    "sed": (MISSING, "The scripts call it: install sed."),
    "tee": (MISSING, "The scripts call it: install coreutils."),
    "diff": (MISSING, "The scripts compare a run's arguments with it: install diffutils."),
    "flock": (NOTE, "Two runs in one folder are then not kept apart: install util-linux."),
    "nvidia-smi": (NOTE, "The scripts count GPUs with it: pass them --processes N."),
}


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, what is needed, and what to do about it."""

    mark: str
    name: str
    found: str
    needed: str = ""
    advice: str = ""

    def line(self) -> str:
        needed = f"; needed: {self.needed}" if self.needed else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.mark:<8} {self.name:<14} {self.found}{needed}{advice}"


@dataclass(frozen=True)
class Gpu:
    """A device that torch sees, and its memory in bytes."""

    name: str
    memory: int


def package_check(distribution: str, module: str) -> Check:
    """Whether ``module`` can be imported, and its version."""
    quieten_matplotlib()
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken package raises what it likes
        command = f"{sys.executable} -m pip install {distribution}"
        if module in ("torch", "fairseq"):  # which is built against torch
            command = "bash scripts/setup.sh"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Check(MISSING, distribution, f"cannot be imported ({reason})", "", f"Run: {command}")
    for name in ("fairseq-fixed", "fairseq") if module == "fairseq" else (distribution,):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return Check(OK, name, importlib.metadata.version(name))
    return Check(OK, distribution, "can be imported, version unknown")


def command_check(name: str) -> Check:
    path = shutil.which(name)
    mark, advice = COMMANDS[name]
    return Check(OK, name, path) if path else Check(mark, name, "not found", "", advice)


def bash_check() -> Check:
    needed = "{}.{} or later".format(*OLDEST_BASH)
    path = shutil.which("bash")
    lacking = Check(MISSING, "bash", "not found", needed, "The scripts are written for it.")
    if path is None:
        return lacking
    command = [path, "-c", 'echo "${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}"']
    version = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if tuple(int(n) for n in re.findall(r"\d+", version)) < OLDEST_BASH:
        return dataclasses.replace(lacking, found=f"{version} ({path})")
    return Check(OK, "bash", f"{version} ({path})", needed)


def find_gpus() -> list[Gpu]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = (torch.cuda.get_device_properties(i) for i in range(count))
    return [Gpu(properties.name, properties.total_memory) for properties in found]


def gpu_check(gpus: Sequence[Gpu], processes: int | None) -> Check:
    """The GPUs that torch sees, against the ``processes`` that were asked for."""
    kinds = Counter(f"{gpu.name} ({in_bytes(gpu.memory)})" for gpu in gpus)
    found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    found = found or f"none seen by torch {torch.__version__}"
    if (processes or 0) > len(gpus):
        advice = f"Pass --processes {len(gpus)} at most, or set up where torch sees more."
        return Check(MISSING, "GPUs", found, f"{processes} (`--processes`)", advice)
    if not gpus or processes == 0:
        advice = "Training runs on the CPU; WMT14's base model takes GPUs."
        if not gpus and shutil.which("nvidia-smi"):
            advice += (
                " If nvidia-smi lists some, set up with a torch for your CUDA (FLOATER_TORCH)."
            )
        return Check(NOTE, "GPUs", found, "", advice)
    return Check(OK, "GPUs", found)


def folder_check(work: Path) -> Check:
    """Whether ``work`` can be written; nothing is left behind."""
    place = nearest_folder(work)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".floater-"):
            return Check(OK, "work folder", f"{work} can be written")
    except OSError as error:
        advice = "Pass another folder with --work."
        return Check(MISSING, "work folder", f"{work}: {error.strerror} at {place}", "", advice)


def memory_check(available: int | None, needed: int) -> Check:
    text = f"about {in_bytes(needed)}"
    if available is None:
        return Check(NOTE, "memory", "unknown: there is no /proc/meminfo", text)
    mark = OK if available >= needed else MISSING
    advice = "" if mark == OK else "Free some, or take a machine with more."
    return Check(mark, "memory", f"{in_bytes(available)} available", text, advice)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that the system and this process's control groups (version 2) leave; None if unknown."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", (root / "proc/meminfo").read_text(), re.M)
    except OSError:
        return None
    rooms = [int(found[1]) * 1024] if found else []
    top, own = root / "sys/fs/cgroup", ""
    with contextlib.suppress(OSError):
        named = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.M)
        own = named[1] if named else ""
    for group in (top / own, *(top / own).parents):
        # No limit is the word `max`; the top group of a machine has no such files.
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            # The cache of files counts as used, but makes way.
            cache = re.findall(
                r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.M
            )
            rooms.append(limit - used + sum(map(int, cache)))
    return max(min(rooms), 0) if rooms else None


def in_bytes(size: int) -> str:
    """``6.2 GB``, in powers of ten."""
    return f"{size / GB:,.1f} GB" if size >= GB else f"{size / 10**6:,.1f} MB"


def nearest_folder(folder: Path) -> Path:
    """``folder`` if it is there, else the nearest above it that is."""
    return next(place for place in (folder, *folder.parents) if place.exists())
