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
    """Make sure that fairseq can resume in ``folder``. Return a sentence for the log.

    fairseq copies the checkpoint that it just saved to ``checkpoint_last.pt``. A run that is killed
    meanwhile leaves half a file or none, and cannot start again. The newest intact checkpoint then becomes
    ``checkpoint_last.pt``. If there is none, the file is set aside and training starts over. The same
    may happen to ``checkpoint_best.pt``, which warm starts read and further training may never replace.
    The checkpoint with the best validation value replaces it, or the newest if that one is gone.

    Raises:
        OSError: the disk cannot be read; its files do not count as broken.
    """
    folder = Path(folder)
    last, best = (folder / f"checkpoint_{name}.pt" for name in ("last", "best"))
    repaired = ""
    if best.exists() and not _is_intact(best):
        others = [*_intact_others(best)]
        if source := next(filter(_is_best, others), next(iter(others), None)):
            # With its time: the newest checkpoint may be needed below.
            write_whole(best, partial(shutil.copy2, source))
            repaired = f"{best} was damaged; replaced by {source}; "
    if last.exists() and _is_intact(last):
        return f"{repaired}resuming from {last}"
    damage = "damaged" if last.exists() else "missing"
    if source := next(_intact_others(last), None):
        write_whole(last, partial(shutil.copyfile, source))
        return f"{repaired}{last} was {damage}; resuming from {source}"
    if not last.exists():
        return f"{repaired}nothing to resume from"
    last.replace(last.with_suffix(".broken"))
    return f"{repaired}{last} was damaged and there is no other checkpoint; starting over"


def _intact_others(path: Path) -> Iterator[Path]:
    """Yield the intact checkpoints beside ``path``, the newest first."""
    others = (p for p in path.parent.glob("checkpoint*.pt") if p != path)
    yield from filter(_is_intact, sorted(others, key=lambda p: p.stat().st_mtime, reverse=True))


def _is_best(path: Path) -> bool:
    """Return whether this checkpoint has a validation value, and none before it had a better one."""
    extra = load_checkpoint(path).get("extra_state") or {}
    return extra.get("val_loss") is not None and extra["val_loss"] == extra.get("best")


def _is_intact(path: Path) -> bool:
    with path.open("rb") as file:
        while file.read(1 << 24):  # torch's errors do not tell a failing disk from a broken file
            pass
    try:
        load_checkpoint(path)
    except RefusedError:
        raise  # it is intact: replacing it would lose the training
    except CheckpointError:
        return False
    return True
