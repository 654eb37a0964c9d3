"""Save, then stop, when a cluster takes the machine back: SIGTERM, and minutes until SIGKILL.

Plain `fairseq-train` dies of SIGTERM. With ``FLOATER_SAVE_ON_SIGTERM=1`` it ends at one of its next
updates with a ``checkpoint_last.pt``, exit code 0 and a file ``stopped`` in its save folder; the same
command goes on from there. Set the variable for all processes of a training or for none: they ask
each other. A signal's effect depends on the process:

* A training finishes its update, or up to ten where processes must agree, then saves and ends without
  a validation. An update after which fairseq saves or validates anyway is left to fairseq, and the
  stop follows one later; a training at its last update finishes.
* A process that only waits for the training processes it has spawned hands the signal on to them.
* DataLoader workers go on; only their parent may end them.
* Any other dies at once as without us, also a training before the end of its first update, or whose
  options keep no ``checkpoint_last.pt``.
"""

from __future__ import annotations

import copy
import functools
import logging
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
# Updates between two questions to the other processes; the answer has to wait for the GPU.
UPDATES_A_QUESTION = 10

logger = logging.getLogger(__name__)
_told = False
_trains = False  # SIGTERM is a request to save
_handler_before: Any = signal.SIG_DFL


def install() -> None:
    """Catch SIGTERM; wrap one function of fairseq-train and one method of torch's DataLoader. Once."""
    global _handler_before
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        return
    _handler_before = signal.signal(signal.SIGTERM, _on_sigterm) or signal.SIG_DFL
    train: Any
    for train in {fairseq_cli.train, sys.modules["__main__"]}:  # under `python -m` the latter
        if hasattr(train, "validate_and_save"):
            train.validate_and_save = stopping(train.validate_and_save)
    DataLoader.__iter__ = _shielding(DataLoader.__iter__)  # type: ignore[method-assign]


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _told
    if _trains:
        _told = True
        return
    # fairseq on several GPUs of a machine: this process waits for one training process a GPU.
    trainings = [child for child in multiprocessing.active_children() if not child.daemon]
    for child in trainings:
        child.terminate()
    if not trainings:
        signal.signal(signal.SIGTERM, _handler_before)
        signal.raise_signal(signal.SIGTERM)


def stopping(validate_and_save: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function by which fairseq decides, after every update, whether to save and to stop."""
    agreed = put_off = False

    @functools.wraps(validate_and_save)
    def after_update(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: Any, end_of_epoch: bool
    ) -> Any:
        nonlocal agreed, put_off
        arguments = (trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        marker = Path(cfg.checkpoint.save_dir) / MARKER
        is_master = distributed_utils.is_master(cfg.distributed_training)
        _begin(cfg, marker if is_master else None)
        agreed = agreed or _anyone_told(trainer)
        updates = trainer.get_num_updates()
        limits = cfg.optimization
        is_last = 0 < (limits.max_update or 0) <= updates or (
            end_of_epoch and 0 < (limits.max_epoch or 0) <= epoch_itr.epoch
        )
        # fairseq takes a limit of 0 updates for none; overflows of half precision are no updates.
        if not agreed or not updates or is_last:
            return validate_and_save(cfg, *arguments)
        intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
        saves_or_validates = end_of_epoch or any(n > 0 and updates % n == 0 for n in intervals)
        if saves_or_validates and not put_off:
            # Left to fairseq with the scheduler's step after it, as in a run that nobody stops. Once:
            # there are runs that save or validate after every update.
            put_off = True
            return validate_and_save(cfg, *arguments)
        # fairseq saves and stops at the last update of a configuration; checkpoints hold trainer.cfg.
        last = copy.deepcopy(cfg)
        last.optimization.max_update = updates
        last.dataset.disable_validation |= not saves_or_validates
        logging.getLogger("fairseq_cli.train").addFilter(_not_done)
        result = validate_and_save(last, *arguments)
        if is_master:
            write_text(marker, f"{updates}\n")
            logger.info(
                "told to stop (SIGTERM): saved at update %d; run the same command to go on", updates
            )
        return result

    return after_update


def _begin(cfg: Any, marker: Path | None) -> None:
    """Take SIGTERM for a request from here on, unless the options leave nothing to go on from."""
    global _trains
    if _trains or cfg.checkpoint.no_save or cfg.checkpoint.no_last_checkpoints:
        return
    _trains = True
    if marker is not None:
        marker.unlink(missing_ok=True)


def _anyone_told(trainer: Any) -> bool:
    """Give the same answer, at the same update, in all processes: else some would wait for ever."""
    if trainer.cfg.distributed_training.distributed_world_size == 1:
        return _told
    if trainer.get_num_updates() % UPDATES_A_QUESTION:
        return False
    answer = torch.tensor([float(_told)], device=trainer.device)
    distributed_utils.all_reduce(answer, distributed_utils.get_global_group(), op="max")
    return bool(answer.item())


def _not_done(record: logging.LogRecord) -> bool:
    """Correct fairseq's last line, "done training in 12.3 seconds", for a training that was stopped."""
    if isinstance(record.msg, str):
        record.msg = record.msg.replace("done training", "stopped training", 1)
    return True


def _shielding(start_workers: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap DataLoader.__iter__, so that its workers outlive a SIGTERM to everyone.

    Schedulers signal all processes of a job, and torchrun a process of its own with its workers.
    torch's workers die of that, and the training of their death.
    """

    @functools.wraps(start_workers)
    def shielding(self: DataLoader[Any]) -> Any:
        if getattr(self.worker_init_fn, "func", None) is not _shield:
            self.worker_init_fn = functools.partial(_shield, self.worker_init_fn)
        # Workers inherit the mask: under "spawn" they import for seconds before they can block.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return start_workers(self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return shielding


def _shield(loaders_own: Callable[[int], Any] | None, worker: int) -> None:
    """Run first in every worker. SIGTERM stays blocked there; its parent still ends it by one."""
    threading.Thread(target=_end_for_parent, daemon=True).start()
    if loaders_own is not None:
        loaders_own(worker)


def _end_for_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)  # as torch's own handler does
