"""Save, then stop, when a cluster takes the machine back: SIGTERM, and minutes until SIGKILL.

Plain `fairseq-train` dies of SIGTERM. With ``FLOATER_SAVE_ON_SIGTERM=1`` it ends at one of its next
updates with a ``checkpoint_last.pt``, exit code 0 and a file ``stopped`` in its save folder; the same
command goes on from there. The variable is for all processes of a training or for none: they ask
each other. What a signal does depends on the process:

* One that trains finishes its update, or up to ten where processes must agree, then saves and ends
  without a validation. An update after which fairseq saves or validates anyway is left to fairseq,
  and the stop follows one later; a training at its last update finishes.
* One that only waits for the training processes it has spawned hands the signal on to them.
* DataLoader workers of a training go on; only their parent may end them.
* Any other dies at once as without us, also a training that has not begun to read its data, or whose
  options keep no ``checkpoint_last.pt``.
"""

from __future__ import annotations

import copy
import functools
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from torch.utils.data import DataLoader

from fairseq_floater.files import write_text

# In the save folder, with the number of the last update: the training was stopped, not finished.
MARKER = "stopped"
# Updates between two questions to the other processes; the answer has to wait for the GPU.
UPDATES_A_QUESTION = 10

logger = logging.getLogger(__name__)


@dataclass
class _Training:
    """The training of this process."""

    trainer: Trainer
    batches: Any = None  # fairseq's iterator over the current epoch
    agreed: bool = False  # all processes know that one was told to stop
    put_off: bool = False
    stopping: bool = False

    @property
    def ends_epoch(self) -> bool:
        return self.batches is not None and self.batches.end_of_epoch()

    @property
    def ends_itself(self) -> bool:
        """fairseq stops after this update anyway."""
        limits = self.trainer.cfg.optimization
        if 0 < (limits.max_update or 0) <= self.trainer.get_num_updates():
            return True
        return self.ends_epoch and 0 < (limits.max_epoch or 0) <= self.batches.epoch

    @property
    def saves_or_validates(self) -> bool:
        """fairseq does so after this update anyway."""
        cfg, updates = self.trainer.cfg, self.trainer.get_num_updates()
        intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
        return self.ends_epoch or any(n > 0 and updates % n == 0 for n in intervals)


_told = False
_training: _Training | None = None
_handler_before: Any = signal.SIG_DFL


def install() -> None:
    """Catch SIGTERM; wrap two methods of fairseq's Trainer and one of torch's DataLoader. Once."""
    global _handler_before
    if hasattr(Trainer.train_step, "stops_on_sigterm"):
        return
    if threading.current_thread() is not threading.main_thread():
        return  # Python lets no other thread set a handler
    _handler_before = signal.signal(signal.SIGTERM, _on_sigterm) or signal.SIG_DFL
    Trainer.train_step = _then_ask(Trainer.train_step)
    Trainer.get_train_iterator = _and_remember(Trainer.get_train_iterator)
    DataLoader.__iter__ = _shielding(DataLoader.__iter__)  # type: ignore[method-assign]


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _told
    if _training is not None:
        _told = True
        return
    # fairseq on several GPUs of a machine: this process waits for one training process a GPU.
    trainings = [child for child in multiprocessing.active_children() if not child.daemon]
    for child in trainings:
        child.terminate()
    if not trainings:
        signal.signal(signal.SIGTERM, _handler_before)
        signal.raise_signal(signal.SIGTERM)


def _and_remember(get_train_iterator: Callable[..., Any]) -> Callable[..., Any]:
    """Trainer.get_train_iterator: called when a training begins and at the end of every epoch."""

    @functools.wraps(get_train_iterator)
    def remembering(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        _begin(self)
        batches = get_train_iterator(self, *args, **kwargs)
        if _training is not None:
            _training.batches = batches
        return batches

    return remembering


def _then_ask(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """Trainer.train_step: one update; fairseq decides right after it whether to save and to stop."""

    @functools.wraps(train_step)
    def asking(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        output = train_step(self, *args, **kwargs)
        _after_update(self)
        return output

    asking.stops_on_sigterm = True  # type: ignore[attr-defined]
    return asking


def _begin(trainer: Trainer) -> None:
    """From here on SIGTERM is a request, unless the options leave nothing to go on from."""
    global _training
    if _training is not None and _training.trainer is trainer:
        return
    options = trainer.cfg.checkpoint
    if options.no_save or options.no_last_checkpoints:
        return
    _training = _Training(trainer)
    if distributed_utils.is_master(trainer.cfg.distributed_training):
        (Path(options.save_dir) / MARKER).unlink(missing_ok=True)


def _after_update(trainer: Trainer) -> None:
    training = _training
    if training is None or training.stopping:
        return
    training.agreed = training.agreed or _anyone_told(trainer)
    # fairseq takes a limit of 0 updates for none; overflows of half precision are no updates.
    if not training.agreed or not trainer.get_num_updates() or training.ends_itself:
        return
    if training.saves_or_validates and not training.put_off:
        # Whole, and with the scheduler's step after it, as in a run that nobody stops. Once: there
        # are runs that do so after every update.
        training.put_off = True
        return
    _stop(training)


def _anyone_told(trainer: Trainer) -> bool:
    """The same answer, at the same update, in all processes: else some would wait for ever."""
    if trainer.cfg.distributed_training.distributed_world_size == 1:
        return _told
    if trainer.get_num_updates() % UPDATES_A_QUESTION:
        return False
    answer = torch.tensor([float(_told)], device=trainer.device)
    distributed_utils.all_reduce(answer, distributed_utils.get_global_group(), op="max")
    return bool(answer.item())


def _stop(training: _Training) -> None:
    """Let fairseq save after this update and end: it has reached the last one it may make."""
    training.stopping = True
    logging.getLogger("fairseq_cli.train").addFilter(_not_done)
    trainer = training.trainer
    cfg = trainer.cfg
    # fairseq_cli.train reads this very object; a checkpoint is written with what the trainer holds.
    trainer.cfg = copy.deepcopy(cfg)
    cfg.optimization.max_update = trainer.get_num_updates()
    if not training.saves_or_validates:
        cfg.dataset.disable_validation = True
    if distributed_utils.is_master(cfg.distributed_training):
        task = trainer.task  # fairseq calls its post_save when all files of a save are in place
        marker = Path(cfg.checkpoint.save_dir) / MARKER
        task.post_save = functools.partial(_saved, marker, getattr(task, "post_save", None))


def _not_done(record: logging.LogRecord) -> bool:
    """fairseq's last line, "done training in 12.3 seconds", is not true of a training that was stopped."""
    if isinstance(record.msg, str):
        record.msg = record.msg.replace("done training", "stopped training", 1)
    return True


def _saved(marker: Path, tasks_own: Callable[..., Any] | None, path: str, updates: int) -> None:
    if tasks_own is not None:
        tasks_own(path, updates)
    write_text(marker, f"{updates}\n")
    logger.info(
        "told to stop (SIGTERM): saved at update %d; run the same command to go on", updates
    )


def _shielding(start_workers: Callable[..., Any]) -> Callable[..., Any]:
    """DataLoader.__iter__: in a training, its worker processes outlive a SIGTERM to everyone.

    Schedulers signal all processes of a job, and torchrun a process of its own with its workers.
    torch's workers die of that, and the training of their death.
    """

    @functools.wraps(start_workers)
    def shielding(self: DataLoader[Any]) -> Any:
        if _training is None:
            return start_workers(self)
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
    """First in every worker. SIGTERM stays blocked there; its parent still ends it by one."""
    threading.Thread(target=_end_for_parent, daemon=True).start()
    if loaders_own is not None:
        loaders_own(worker)


def _end_for_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)  # as torch's own handler does
