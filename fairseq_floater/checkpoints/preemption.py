"""Save a checkpoint and stop when a cluster sends SIGTERM, some minutes before SIGKILL.

Plain `fairseq-train` dies of SIGTERM. With ``FLOATER_SAVE_ON_SIGTERM=1`` a training stops at its next
update, without an extra validation. It writes ``checkpoint_last.pt`` and a file ``stopped`` to its save
folder, and exits with code 0. The same command resumes it. If that update ends an epoch, the training
stops one update later. Set the variable for all processes of a training or for none, because they ask
each other whether to stop. A training still dies of SIGTERM before the end of its first update, or if
its options keep no ``checkpoint_last.pt``.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fairseq_cli.train
import torch
from fairseq.distributed import utils as distributed_utils
from torch.utils.data import DataLoader

from fairseq_floater.files import write_text

# File in the save folder with the number of the last update: the training stopped, but is not finished.
MARKER = "stopped"

logger = logging.getLogger(__name__)
_stop_requested = False


def install() -> None:
    """Catch SIGTERM, and wrap a function of fairseq-train and a method of torch's DataLoader, only once."""
    if signal.getsignal(signal.SIGTERM) is _forward_sigterm:
        return
    signal.signal(signal.SIGTERM, _forward_sigterm)
    train: Any
    for train in {fairseq_cli.train, sys.modules["__main__"]}:  # under `python -m` the latter
        if hasattr(train, "validate_and_save"):
            train.validate_and_save = stopping_on_request(train.validate_and_save)
    DataLoader.__iter__ = _protecting_workers(DataLoader.__iter__)  # type: ignore[method-assign]


def _forward_sigterm(number: int, frame: FrameType | None) -> None:
    """Pass SIGTERM on to the trainings that fairseq started here, one per GPU; without any, die of it."""
    trainings = [child for child in multiprocessing.active_children() if not child.daemon]
    for child in trainings:
        child.terminate()
    if not trainings:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


def _request_stop(number: int, frame: FrameType | None) -> None:
    global _stop_requested
    _stop_requested = True


def stopping_on_request(validate_and_save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap fairseq's function that decides after every update whether to save and to stop."""

    @functools.wraps(validate_and_save)
    def after_update(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: Any, end_of_epoch: bool
    ) -> Any:
        arguments = (trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        if cfg.checkpoint.no_save or cfg.checkpoint.no_last_checkpoints:
            return validate_and_save(cfg, *arguments)
        marker = Path(cfg.checkpoint.save_dir) / MARKER
        is_master = distributed_utils.is_master(cfg.distributed_training)
        if signal.getsignal(signal.SIGTERM) is not _request_stop:  # the first update
            signal.signal(signal.SIGTERM, _request_stop)
            if is_master:
                marker.unlink(missing_ok=True)
        updates = trainer.get_num_updates()
        # fairseq reads a limit of 0 updates as no limit. An overflow of half precision is not an update.
        within = 0 < updates < (cfg.optimization.max_update or math.inf)
        if not _any_stop_requested(trainer) or end_of_epoch or not within:
            return validate_and_save(cfg, *arguments)
        # fairseq saves and stops at max_update. The checkpoint holds trainer.cfg, which is not changed.
        last = copy.deepcopy(cfg)
        last.optimization.max_update = updates
        # A checkpoint at a regular interval needs its validation value: `average --best` reads it.
        intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
        if not any(n > 0 and updates % n == 0 for n in intervals):
            last.dataset.disable_validation = True
        result = validate_and_save(last, *arguments)
        if is_master:
            write_text(marker, f"{updates}\n")
            logger.info(
                "told to stop (SIGTERM): saved at update %d; run the same command to go on", updates
            )
        return result

    return after_update


def _any_stop_requested(trainer: Any) -> bool:
    """Return whether any process was told to stop: all must stop at one update, or some wait forever."""
    if trainer.cfg.distributed_training.distributed_world_size == 1:
        return _stop_requested
    answer = torch.tensor([float(_stop_requested)], device=trainer.device)
    distributed_utils.all_reduce(answer, distributed_utils.get_global_group(), op="max")
    return bool(answer.item())


def _protecting_workers(start_workers: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap DataLoader.__iter__ so that its workers survive a SIGTERM to all processes.

    Schedulers signal all processes of a job, and torchrun signals a process together with its workers.
    torch's workers would die of it, and then the training would fail.
    """

    @functools.wraps(start_workers)
    def start_protected(self: DataLoader[Any]) -> Any:
        if self.worker_init_fn not in (None, _obey_only_parent):
            return start_workers(self)
        self.worker_init_fn = _obey_only_parent
        # Workers inherit the mask. Under "spawn" they import for seconds before they could block SIGTERM.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return start_workers(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return start_protected


def _obey_only_parent(worker: int) -> None:
    """Run first in every worker: it ignores SIGTERM unless its parent sent it."""

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)  # as torch's own handler does

    threading.Thread(target=wait, daemon=True).start()
