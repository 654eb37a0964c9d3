"""Estimate how much time a set of runs still takes, by what those that are done have taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_floater.experiments.cells import end_of
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import UPDATE, total_updates


def seconds_left(systems: Mapping[str, Sequence[Path]]) -> float | None:
    """Return the seconds of work that are left in all runs; None where none is done yet.

    A run takes what its system took under other seeds, else the mean of all runs, less the part of its
    training that is over.

    Args:
        systems: the folders of each system's runs, one a seed; they need not be there yet.
    """
    records = {name: [RunFolder(f).read() for f in folders] for name, folders in systems.items()}
    took = {name: list(filter(None, map(_seconds, found))) for name, found in records.items()}
    every = [seconds for found in took.values() for seconds in found]
    if not every:
        return None
    return sum(
        mean(took[name] or every) * (1 - _share_trained(folder, record))
        for name, folders in systems.items()
        for folder, record in zip(folders, records[name])
        if record.get("state") != "done"
    )


def _seconds(record: dict[str, Any]) -> float:
    """Return what a run that is done has taken; 0 for others, and for those without a record of it."""
    if record.get("state") != "done":
        return 0.0
    return sum(float(session["seconds"]) for session in record.get("sessions", ()))


def _share_trained(folder: Path, record: dict[str, Any]) -> float:
    """Return how much of a run's last training is over, 0..1."""
    if record.get("trained"):
        return 1.0
    stage = next((s for s in ("scratch", "finetune") if s in record["arguments"]), None)
    log = folder / "train.log"
    found = UPDATE.findall(end_of(log)) if stage and log.exists() else []
    if not found or stage is None:
        return 0.0
    _, an_epoch, _, done = found[-1]
    total = total_updates(record["arguments"][stage], int(an_epoch))
    return min(1.0, int(done) / total) if total else 0.0
