"""Check a machine for `floater info --check`: packages, commands, GPUs, memory."""

from __future__ import annotations

import importlib
import shutil
import sys
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
from fairseq_floater.requirements import EXTRAS, FAIRSEQS, version_of

OK, NOTE, MISSING = "ok", "note", "missing"
GB = 10**9
# Command -> what to do without it.
COMMANDS = {
    "bash": "The scripts need bash 4.4 or later.",
    "curl": "The scripts download WMT14, WikiText and SCAN with it: install curl.",
    "nvidia-smi": "The scripts count GPUs with nvidia-smi: pass --processes N to them.",
}


@dataclass(frozen=True)
class Check:
    """One line of the report: the thing checked, its state, what is needed, and advice."""

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
    """Return a passed check if ``holds``, else a check with the mark ``otherwise`` and the advice."""
    return Check(OK, name, seen, needed) if holds else Check(otherwise, name, seen, needed, advice)


class Gpu(NamedTuple):
    """A device that torch sees, and its memory in bytes."""

    name: str
    memory: int


def package_check(distribution: str, module: str, extra: str | None = None) -> Check:
    """Check that a package can be imported; of setup.py's extras only ``extra`` must be there."""
    quieten_matplotlib()
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken package may raise anything
        command = f"{sys.executable} -m pip install {distribution}"
        if module in ("torch", "fairseq"):  # fairseq is built against torch
            command = "bash scripts/setup.sh"
        seen = f"cannot be imported ({first_line(error)})"
        optional = module in EXTRAS and EXTRAS[module] != extra
        return Check(NOTE if optional else MISSING, distribution, seen, "", f"Run: {command}")
    names = FAIRSEQS if module == "fairseq" else (distribution,)
    name = next(filter(version_of, names), distribution)
    return Check(OK, name, version_of(name) or "can be imported, version unknown")


def command_check(name: str) -> Check:
    path = shutil.which(name)
    return judged(path is not None, name, path or "not found", "", COMMANDS[name], NOTE)


def find_gpus() -> list[Gpu]:
    seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [Gpu(properties.name, properties.total_memory) for properties in seen]


def gpu_check(gpus: Sequence[Gpu], processes: int | None) -> Check:
    """Check which GPUs torch sees; 0 ``processes`` train on the CPU."""
    kinds = Counter(f"{gpu.name} ({size_text(gpu.memory)})" for gpu in gpus)
    seen = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    seen = seen or f"none seen by torch {torch.__version__}"
    advice = "Training runs on the CPU; WMT14's base model needs GPUs."
    if not gpus and shutil.which("nvidia-smi"):
        advice += " If nvidia-smi lists GPUs, install a torch for your CUDA (FLOATER_TORCH)."
    return judged(bool(gpus) and processes != 0, "GPUs", seen, "", advice, NOTE)


def memory_check(needed: int) -> Check:
    available = available_memory()
    seen, advice = f"{size_text(available)} available", "Free memory, or use a machine with more."
    return judged(available >= needed, "memory", seen, f"about {size_text(needed)}", advice)


def available_memory(root: Path = Path("/")) -> int:
    """Return the available memory in bytes, at most the limit of the control groups (version 2).

    psutil does not read control groups, with which containers and SLURM limit memory.
    """
    limits = [psutil.virtual_memory().available]
    with suppress(OSError):
        name = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        group = root / "sys/fs/cgroup" / name
        for folder in (group, *group.parents):
            # The word `max` means no limit; a machine's top group has no such file.
            with suppress(OSError, ValueError):
                limits.append(int((folder / "memory.max").read_text()))
    return min(limits)


def size_text(size: int) -> str:
    return f"{size / GB:,.1f} GB" if size >= GB else f"{size / 10**6:,.1f} MB"
