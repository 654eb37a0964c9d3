"""Check a machine for `floater info --check`: packages, commands, GPUs, memory, a folder to write to."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from fairseq_floater.errors import first_line
from fairseq_floater.figures import quieten_matplotlib
from fairseq_floater.requirements import FAIRSEQS, version_of

OK, NOTE, MISSING = "ok", "note", "missing"
GB = 10**9
OLDEST_BASH = (4, 4)  # empty arrays under `set -u`
# Command -> what to do without it.
COMMANDS = {
    "curl": "scripts/prepare_wmt14.sh downloads with it: install curl for WMT14.",
    "nvidia-smi": "The scripts count GPUs with it: pass them --processes N.",
}


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, its state, what is needed, and what to do about it."""

    mark: str
    name: str
    found: str
    needed: str = ""
    advice: str = ""

    def line(self) -> str:
        needed = f"; needed: {self.needed}" if self.needed else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"{self.mark:<8} {self.name:<14} {self.found}{needed}{advice}"


def judged(
    holds: bool, name: str, seen: str, needed: str, advice: str, otherwise: str = MISSING
) -> Check:
    """Return a check that holds, or else one with the mark ``otherwise`` and its advice."""
    return Check(OK, name, seen, needed) if holds else Check(otherwise, name, seen, needed, advice)


class Gpu(NamedTuple):
    """A device that torch sees, and its memory in bytes."""

    name: str
    memory: int


def package_check(distribution: str, module: str) -> Check:
    quieten_matplotlib()
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken package raises what it likes
        command = f"{sys.executable} -m pip install {distribution}"
        if module in ("torch", "fairseq"):  # fairseq is built against torch
            command = "bash scripts/setup.sh"
        seen = f"cannot be imported ({first_line(error)})"
        return Check(MISSING, distribution, seen, "", f"Run: {command}")
    names = FAIRSEQS if module == "fairseq" else (distribution,)
    name = next(filter(version_of, names), distribution)
    return Check(OK, name, version_of(name) or "can be imported, version unknown")


def command_check(name: str) -> Check:
    path = shutil.which(name)
    return judged(path is not None, name, path or "not found", "", COMMANDS[name], NOTE)


def bash_check() -> Check:
    seen, path = "not found", shutil.which("bash")
    if path is not None:
        command = [path, "-c", 'echo "${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}"']
        version = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        seen = f"{version} ({path})"
    recent = tuple(map(int, re.findall(r"\d+", seen.split("(")[0]))) >= OLDEST_BASH
    needed = "{}.{} or later".format(*OLDEST_BASH)
    return judged(recent, "bash", seen, needed, "The scripts are written for it.")


def find_gpus() -> list[Gpu]:
    seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [Gpu(properties.name, properties.total_memory) for properties in seen]


def gpu_check(gpus: Sequence[Gpu], processes: int | None) -> Check:
    """Check the GPUs that torch sees against the ``processes`` asked for."""
    kinds = Counter(f"{gpu.name} ({in_bytes(gpu.memory)})" for gpu in gpus)
    seen = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    seen = seen or f"none seen by torch {torch.__version__}"
    if (processes or 0) > len(gpus):
        advice = f"Pass --processes {len(gpus)} at most, or set up where torch sees more."
        return Check(MISSING, "GPUs", seen, f"{processes} (`--processes`)", advice)
    advice = "Training runs on the CPU; WMT14's base model takes GPUs."
    if not gpus and shutil.which("nvidia-smi"):
        advice += " If nvidia-smi lists some, set up with a torch for your CUDA (FLOATER_TORCH)."
    return judged(bool(gpus) and processes != 0, "GPUs", seen, "", advice, NOTE)


def folder_check(work: Path) -> Check:
    """Check that ``work`` can be written; nothing is left behind."""
    place = nearest_folder(work)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".floater-"):
            return Check(OK, "work folder", f"{work} can be written")
    except OSError as error:
        advice = "Pass another folder with --work."
        return Check(MISSING, "work folder", f"{work}: {error.strerror} at {place}", "", advice)


def memory_check(available: int, needed: int) -> Check:
    seen, advice = f"{in_bytes(available)} available", "Free some, or take a machine with more."
    return judged(available >= needed, "memory", seen, f"about {in_bytes(needed)}", advice)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that the system leaves, and that the control groups (version 2) admit at most.

    psutil knows nothing of control groups, by which containers and SLURM limit memory.
    """
    rooms = [psutil.virtual_memory().available]
    with suppress(OSError):
        name = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        group = root / "sys/fs/cgroup" / name
        for place in (group, *group.parents):
            # No limit is the word `max`; a machine's top group has no such file.
            with suppress(OSError, ValueError):
                rooms.append(int((place / "memory.max").read_text()))
    return min(rooms)


def in_bytes(size: int) -> str:
    """Format ``6.2 GB``, in powers of ten."""
    return f"{size / GB:,.1f} GB" if size >= GB else f"{size / 10**6:,.1f} MB"


def nearest_folder(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())
