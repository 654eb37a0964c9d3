"""Repair a run's folder, so that fairseq can resume in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    RefusedError,
    load_checkpoint,
)
from fairseq_floater.files import write_whole


def repair_last(folder: str | os.PathLike[str]) -> str:
    """Make sure that fairseq can resume in ``folder``; returns a sentence for the log.

    fairseq copies ``checkpoint_last.pt`` byte by byte from the checkpoint just saved: a run killed
    meanwhile leaves half a file, and cannot start again. A broken one is replaced by the newest
    whole checkpoint; without any, it is set aside and training starts over. ``checkpoint_best.pt`` is
    such a copy too: training on may find nothing better, and warm starts read it. The one with the best
    validation value replaces it, or the newest where that one is gone.

    Raises:
        OSError: a disk that cannot be read; its files are not taken for broken ones.
    """
    folder = Path(folder)
    last, best = (folder / f"checkpoint_{name}.pt" for name in ("last", "best"))
    said = ""
    if best.exists() and not _is_whole(best):
        others = [*_whole_others(best)]
        if source := next(filter(_is_best, others), next(iter(others), None)):
            write_whole(best, partial(shutil.copyfile, source))
            said = f"{best} was broken off; replaced by {source}; "
    if not last.exists():
        return f"{said}nothing to resume from"
    if _is_whole(last):
        return f"{said}resuming from {last}"
    if source := next(_whole_others(last), None):
        write_whole(last, partial(shutil.copyfile, source))
        return f"{said}{last} was broken off; resuming from {source}"
    last.replace(last.with_suffix(".broken"))
    return f"{said}{last} was broken off and there is no other checkpoint; starting over"


def _whole_others(path: Path) -> Iterator[Path]:
    """Yield the whole checkpoints beside ``path``, the newest first."""
    others = (p for p in path.parent.glob("checkpoint*.pt") if p != path)
    yield from filter(_is_whole, sorted(others, key=lambda p: p.stat().st_mtime, reverse=True))


def _is_best(path: Path) -> bool:
    """Return whether fairseq found no better validation value up to this checkpoint, and it has one."""
    extra = load_checkpoint(path).get("extra_state") or {}
    return extra.get("val_loss") is not None and extra["val_loss"] == extra.get("best")


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        while file.read(1 << 24):  # torch's errors do not tell a failing disk from a broken file
            pass
    try:
        load_checkpoint(path)
    except RefusedError:
        raise  # it is whole: to put another in its place would lose what was trained
    except CheckpointError:
        return False
    return True
