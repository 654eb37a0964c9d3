"""Save, then stop, when a cluster takes the machine back: SIGTERM, and minutes until SIGKILL.

Plain `fairseq-train` dies of SIGTERM. With ``FLOATER_SAVE_ON_SIGTERM=1`` a training ends at its next
update with a ``checkpoint_last.pt``, without a validation, with exit code 0 and a file ``stopped`` in
its save folder; the same command goes on from there. An update that ends an epoch is left to fairseq,
and the stop follows one later. Set the variable for all processes of a training or for none: they ask
each other. A training before the end of its first update, or whose options keep no
``checkpoint_last.pt``, dies as without us.
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

# In the save folder, with the number of the last update: the training was stopped, not finished.
MARKER = "stopped"

logger = logging.getLogger(__name__)
_told = False


def install() -> None:
    """Catch SIGTERM; wrap one function of fairseq-train and one method of torch's DataLoader. Once."""
    if signal.getsignal(signal.SIGTERM) is _pass_on:
        return
    signal.signal(signal.SIGTERM, _pass_on)
    train: Any
    for train in {fairseq_cli.train, sys.modules["__main__"]}:  # under `python -m` the latter
        if hasattr(train, "validate_and_save"):
            train.validate_and_save = stopping(train.validate_and_save)
    DataLoader.__iter__ = _shielding(DataLoader.__iter__)  # type: ignore[method-assign]


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Tell the trainings that fairseq has started here, one a GPU; a process without any dies."""
    trainings = [child for child in multiprocessing.active_children() if not child.daemon]
    for child in trainings:
        child.terminate()
    if not trainings:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


def _remember(number: int, frame: FrameType | None) -> None:
    global _told
    _told = True


def stopping(validate_and_save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function by which fairseq decides, after every update, whether to save and to stop."""

    @functools.wraps(validate_and_save)
    def after_update(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: Any, end_of_epoch: bool
    ) -> Any:
        arguments = (trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        if cfg.checkpoint.no_save or cfg.checkpoint.no_last_checkpoints:
            return validate_and_save(cfg, *arguments)
        marker = Path(cfg.checkpoint.save_dir) / MARKER
        is_master = distributed_utils.is_master(cfg.distributed_training)
        if signal.getsignal(signal.SIGTERM) is not _remember:  # the first update
            signal.signal(signal.SIGTERM, _remember)
            if is_master:
                marker.unlink(missing_ok=True)
        updates = trainer.get_num_updates()
        # fairseq takes a limit of 0 updates for none; overflows of half precision are no updates.
        within = 0 < updates < (cfg.optimization.max_update or math.inf)
        if not _anyone_told(trainer) or end_of_epoch or not within:
            return validate_and_save(cfg, *arguments)
        # fairseq saves and stops at the last update of a configuration; checkpoints hold trainer.cfg.
        last = copy.deepcopy(cfg)
        last.optimization.max_update = updates
        # What is saved at an interval keeps its validation value: averages of the best ask for it.
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


def _anyone_told(trainer: Any) -> bool:
    """Give the same answer, at the same update, in all processes: else some would wait for ever."""
    if trainer.cfg.distributed_training.distributed_world_size == 1:
        return _told
    answer = torch.tensor([float(_told)], device=trainer.device)
    distributed_utils.all_reduce(answer, distributed_utils.get_global_group(), op="max")
    return bool(answer.item())


def _shielding(start_workers: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap DataLoader.__iter__, so that its workers outlive a SIGTERM to everyone.

    Schedulers signal all processes of a job, and torchrun a process of its own with its workers.
    torch's workers die of that, and then the training fails.
    """

    @functools.wraps(start_workers)
    def shielding(self: DataLoader[Any]) -> Any:
        if self.worker_init_fn not in (None, _obey_parent_alone):
            return start_workers(self)
        self.worker_init_fn = _obey_parent_alone
        # Workers inherit the mask: under "spawn" they import for seconds before they can block.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return start_workers(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return shielding


def _obey_parent_alone(worker: int) -> None:
    """Run first in every worker: SIGTERM stays blocked there, but its parent still ends it by one."""

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)  # as torch's own handler does

    threading.Thread(target=wait, daemon=True).start()
