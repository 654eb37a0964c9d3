"""Repair a run's folder, so that fairseq can resume in it."""

from __future__ import annotations

import os
import shutil
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
    such a copy too: training on may find nothing better, and warm starts read it.

    Raises:
        OSError: a disk that cannot be read; its files are not taken for broken ones.
    """
    folder = Path(folder)
    last, best = (folder / f"checkpoint_{name}.pt" for name in ("last", "best"))
    if best.exists() and not _is_whole(best):
        _replace_broken(best)
    if not last.exists():
        return "nothing to resume from"
    if _is_whole(last):
        return f"resuming from {last}"
    if source := _replace_broken(last):
        return f"{last} was broken off; resuming from {source}"
    last.replace(last.with_suffix(".broken"))
    return f"{last} was broken off and there is no other checkpoint; starting over"


def _replace_broken(path: Path) -> Path | None:
    """Replace ``path`` by the newest whole checkpoint beside it; returns which, or None."""
    others = (p for p in path.parent.glob("checkpoint*.pt") if p != path)
    for other in sorted(others, key=lambda p: p.stat().st_mtime, reverse=True):
        if _is_whole(other):
            write_whole(path, partial(shutil.copyfile, other))
            return other
    return None


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
