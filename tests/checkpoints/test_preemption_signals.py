"""SIGTERM inside one process: the update at which a training stops, and who obeys the signal."""

import copy
import signal
import sys
from types import SimpleNamespace

import pytest
import toy as toys
from toy import PACKAGE

from fairseq_floater.checkpoints import preemption

ASKED = {"FLOATER_SAVE_ON_SIGTERM": "1"}


def options_of_a_training(**changes):
    """fairseq's options that matter for the stop."""
    checkpoint = {"no_save": False, "no_last_checkpoints": False, "save_interval_updates": 0}
    dataset = {"validate_interval_updates": 0, "disable_validation": False}
    cfg = {
        "checkpoint": {**checkpoint, "save_dir": ""},
        "dataset": dataset,
        "optimization": {"max_update": 0, "max_epoch": 0},
        "distributed_training": {"distributed_world_size": 1, "distributed_rank": 1},
    }
    for name, value in changes.items():
        next(part for part in cfg.values() if name in part)[name] = value
    return SimpleNamespace(**{name: SimpleNamespace(**part) for name, part in cfg.items()})


@pytest.mark.parametrize(
    ("options", "first_update", "stop"),  # told after the first update
    [
        ({}, 6, 7),
        ({"save_interval_updates": 7}, 6, 7),
        ({"validate_interval_updates": 7}, 6, 7),
        ({}, -1, 1),  # the first batches overflowed
        ({"max_update": 7}, 6, None),
        ({"no_save": True}, 6, None),
        ({"no_last_checkpoints": True}, 6, None),
    ],
)
def test_the_update_of_the_stop(monkeypatch, options, first_update, stop):
    monkeypatch.setattr(preemption, "_stop_requested", False)
    before = signal.getsignal(signal.SIGTERM)
    cfg, used = options_of_a_training(**options), []
    unchanged = copy.deepcopy(cfg)
    after_update = preemption.stopping_on_request(lambda cfg, *_: used.append(cfg))
    try:
        for update in range(max(0, first_update), first_update + 3):
            trainer = SimpleNamespace(cfg=cfg, get_num_updates=lambda update=update: update)
            after_update(cfg, trainer, None, None, [], False)
            if signal.getsignal(signal.SIGTERM) is not before:
                signal.raise_signal(signal.SIGTERM)
            if used[-1] is not cfg:
                break
    finally:
        signal.signal(signal.SIGTERM, before)
    assert cfg == unchanged  # checkpoints hold these options
    if stop is None:
        assert all(c is cfg for c in used) and len(used) == 3
        return
    assert used[-1].optimization.max_update == update == stop
    at_interval = any(name.endswith("interval_updates") for name in options)
    assert used[-1].dataset.disable_validation is not at_interval


TWICE = """
import os, signal, sys
from argparse import Namespace
from fairseq import utils
from fairseq_cli import train

plain = train.validate_and_save
for folder in sys.argv[1:]:
    utils.import_user_module(Namespace(user_dir=folder))
from fairseq_floater.checkpoints import preemption
preemption.install()
assert train.validate_and_save.__wrapped__ is plain
assert signal.getsignal(signal.SIGTERM) is preemption._forward_sigterm
print("installed once", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("still there")
"""


def test_it_is_installed_once_and_a_process_that_does_not_train_dies():
    command = [sys.executable, "-c", TWICE, PACKAGE, f"{PACKAGE}/"]
    done = toys.run(command, env=toys.environment(**ASKED), code=-signal.SIGTERM)
    assert done.stdout == "installed once\n"


LOADERS = """
import multiprocessing, subprocess
from multiprocessing import resource_tracker
from torch.utils.data import DataLoader

if __name__ == "__main__":
    import fairseq_floater

    resource_tracker.ensure_running()  # as in a process that fairseq spawns; its start unblocks
    for context, loaders in (("fork", 2), ("spawn", 1)):
        # One batch for two workers: the other is without work.
        batches = iter(DataLoader([7], num_workers=loaders, multiprocessing_context=context))
        workers = multiprocessing.active_children()
        for worker in workers:  # at once: under "spawn" they have not even imported torch
            subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
        print(context, next(batches).item())
        for worker in workers:
            while worker.exitcode is None:  # a signal is lost where one is pending; torch repeats it too
                worker.terminate()
                worker.join(0.5)
            print(worker.exitcode)
"""


def test_loaders_outlive_a_signal_to_everyone_but_obey_their_parent(tmp_path):
    script = tmp_path / "loaders.py"
    script.write_text(LOADERS)
    done = toys.run([sys.executable, script], env=toys.environment(**ASKED))
    assert done.stdout.split() == ["fork", "7", "0", "0", "spawn", "7", "0"]
