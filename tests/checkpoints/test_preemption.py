"""SIGTERM in training: it saves and stops; resumed, it ends as an uninterrupted training does.

A plugin around ours sends the signals from inside, so that they come at the same update every time.
"""

import json
import shlex
import signal
import sys

import pytest
import torch
import toy as toys
from toy import UPDATES_AN_EPOCH, largest_difference, losses, update_losses, valid_losses

ASKED = {"FLOATER_SAVE_ON_SIGTERM": "1"}

# TELL: {rank: [[moment, updates made so far, whom], ...]}: the process of that rank signals ``whom``.
TELLER = """
import json, os, signal, subprocess, time

import fairseq_floater
from fairseq.trainer import Trainer

if os.getpgrp() != os.getpid():
    os.setpgid(0, 0)  # a signal to the group then reaches this process and its loaders alone


def tell(trainer, moment):
    rank = str(trainer.cfg.distributed_training.distributed_rank)
    for when, updates, whom in json.loads(os.environ["TELL"]).get(rank, []):
        if (when, updates) == (moment, trainer.get_num_updates()):
            print("TELLING", whom, "AT", updates, flush=True)
            if whom == "group":  # by a stranger: loaders obey their parent
                subprocess.run(["kill", "-TERM", "--", f"-{os.getpgrp()}"], start_new_session=True)
            else:
                os.kill(os.getpid() if whom == "process" else os.getppid(), signal.SIGTERM)
            while whom == "parent" and not fairseq_floater.checkpoints.preemption._stop_requested:
                time.sleep(0.01)


def telling(moment, method):
    def told(self, *args, **kwargs):
        tell(self, moment)
        return method(self, *args, **kwargs)
    return told


Trainer.train_step = telling("update", Trainer.train_step)
Trainer.save_checkpoint = telling("save", Trainer.save_checkpoint)
"""

# fairseq starts a process for every GPU it sees; with --cpu it does not check what they can do.
SPAWNING = """
import torch

torch.cuda.device_count = lambda: 2
from fairseq_cli.train import cli_main

if __name__ == "__main__":
    cli_main()
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin") / "told_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(TELLER)
    (folder / "spawning.py").write_text(SPAWNING)
    return folder


def told(tell, **asked):
    return toys.environment(**asked, TELL=json.dumps(tell))


def train(toy, plugin, folder, *options, tell=None, asked=ASKED, code=0):
    """Train for two epochs, with the signals of ``tell`` to the process; return the log."""
    words = toy.training(folder, "--arch", toys.ARCH, "--max-epoch", 2, *options)
    # Without fairseq's buffer, an epoch needs its loader to the end.
    words += ["--num-workers", 1, "--data-buffer-size", 0, "--user-dir", plugin]
    command = [sys.executable, "-m", "fairseq_cli.train", *words]
    return toys.run(command, env=told({0: tell or []}, **asked), code=code).stdout


def state(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


def updates(folder):
    return state(folder)["optimizer_history"][-1]["num_updates"]


def progress(folder):
    """What a resumed run takes from a checkpoint besides the large tensors and the clocks."""
    saved = state(folder)
    extra, groups = saved["extra_state"], saved["last_optimizer_state"]["param_groups"]
    return extra["best"], extra["train_iterator"], saved["optimizer_history"][-1], groups


@pytest.fixture(scope="module")
def uninterrupted(toy, plugin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, train(toy, plugin, folder)


@pytest.fixture(scope="module")
def stopped(toy, plugin, tmp_path_factory):
    """Do the same training in three commands: the folder, and [(update, marker, checkpoint, log), ...].

    The first command and its loaders get a signal in the middle of an epoch, and again while it saves. The
    second gets one while it saves the end of the epoch, the third during its last update.
    """
    folder = tmp_path_factory.mktemp("stopped")
    marker = folder / "stopped"
    found = []
    for tell in (
        [["update", 3, "group"], ["save", 4, "group"]],
        [["save", UPDATES_AN_EPOCH, "group"]],
        [["update", 2 * UPDATES_AN_EPOCH - 1, "process"]],
    ):
        log = train(toy, plugin, folder, tell=tell)
        assert log.count("TELLING") == len(tell)
        text = marker.read_text() if marker.exists() else None
        found.append((updates(folder), text, state(folder), log))
    return folder, found


def test_a_training_told_to_stop_saves_at_that_very_update(stopped):
    number, marker, saved, log = stopped[1][0]
    assert (number, marker) == (4, "4\n")
    assert list(update_losses(log)) == [1, 2, 3, 4]
    assert saved["extra_state"]["val_loss"] is None
    assert valid_losses(log) == {}
    line = "told to stop (SIGTERM): saved at update 4; run the same command to go on"
    assert log.count(line) == 1


def test_told_during_the_save_of_an_epoch_it_stops_after_the_next_update(stopped, uninterrupted):
    number, marker, saved, log = stopped[1][1]
    assert (number, marker) == (UPDATES_AN_EPOCH + 1, f"{UPDATES_AN_EPOCH + 1}\n")
    assert list(update_losses(log)) == list(range(5, UPDATES_AN_EPOCH + 2))
    assert valid_losses(log) == {1: valid_losses(uninterrupted[1])[1]}
    pair = [folder / "checkpoint1.pt" for folder in (stopped[0], uninterrupted[0])]
    assert losses(pair[0]) == pytest.approx(losses(pair[1]), abs=1e-6)
    assert saved["extra_state"]["best"] == losses(pair[1])[1]


def test_told_at_its_last_update_a_training_finishes(stopped):
    number, marker, _, log = stopped[1][2]
    assert (number, marker) == (2 * UPDATES_AN_EPOCH, None)
    assert "done training in " in log
    assert "told to stop" not in log
    assert list(valid_losses(log)) == [2]


def test_the_parts_make_the_uninterrupted_training(stopped, uninterrupted):
    folders = stopped[0], uninterrupted[0]
    parts = [update_losses(log) for *_, log in stopped[1]]
    assert parts[0] | parts[1] | parts[2] == update_losses(uninterrupted[1])
    for name in ("checkpoint1.pt", "checkpoint2.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
        pair = [folder / name for folder in folders]
        assert largest_difference(*pair) <= 1e-6
        assert losses(pair[0]) == pytest.approx(losses(pair[1]), abs=1e-6)
    assert progress(folders[0]) == progress(folders[1])


def test_nothing_of_the_stop_is_in_what_was_saved(stopped):
    saved = [saved for _, _, saved, _ in stopped[1]]
    for part in saved[:2]:
        assert part["cfg"] == saved[2]["cfg"]
        assert part["cfg"]["optimization"]["max_update"] == 0
        assert part["cfg"]["dataset"]["disable_validation"] is False
    assert "best" not in saved[0]["extra_state"]


@pytest.mark.slow
def test_without_the_variable_a_training_dies(toy, plugin, tmp_path):
    tell = [["update", 3, "process"]]
    log = train(toy, plugin, tmp_path, tell=tell, asked={}, code=-signal.SIGTERM)
    assert list(update_losses(log)) == [1, 2, 3]
    assert list(tmp_path.iterdir()) == []


# Two processes: 5 updates an epoch.

BOTH = ("--distributed-world-size", 2, "--distributed-backend", "gloo")
# fairseq hands a checkpoint from process to process in a form that torch >= 2.6 refuses.
BOTH += ("--ddp-backend", "legacy_ddp", "--load-checkpoint-on-all-dp-ranks")
BOTH += ("--num-workers", 1)


def training_of_two(toy, plugin, folder, epochs, *options):
    words = toy.training(folder, "--arch", toys.ARCH, "--max-epoch", epochs, *BOTH, *options)
    return [str(word) for word in (*words, "--user-dir", plugin)]


def by_torchrun(toy, plugin, folder, epochs, *options, tell=None):
    """Train with two processes that torchrun starts; return the log."""
    words = [sys.executable, "-m", "fairseq_cli.train"]
    words += training_of_two(toy, plugin, folder, epochs, *options)
    words += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    line = f"{shlex.join(words)} --distributed-rank $RANK"
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", 2, "--no-python"]
    command = [sys.executable, "-m", *launch, "bash", "-c", line]
    return toys.run(command, env=told(tell or {}, **ASKED)).stdout


def by_fairseq(toy, plugin, folder, epochs, *options, tell=None):
    """Train with two processes that fairseq starts itself, one for each GPU; return the log."""
    words = training_of_two(toy, plugin, folder, epochs, *options)
    # Here a loader does not fork: it imports everything anew, which takes seconds in every epoch.
    command = [sys.executable, plugin / "spawning.py", *words, "--num-workers", "0"]
    return toys.run(command, env=told(tell or {}, **ASKED)).stdout


@pytest.mark.slow
def test_two_processes_stop_at_the_same_update_whoever_is_told(toy, plugin, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    by_torchrun(toy, plugin, whole, 5, "--max-update", 13)

    # The signal goes to one process and its loaders.
    log = by_torchrun(toy, plugin, parts, 5, tell={1: [["update", 6, "group"]]})
    assert "TELLING group AT 6" in log
    assert log.count("saved at update 7;") == 1
    assert (parts / "stopped").read_text() == f"{updates(parts)}\n" == "7\n"
    assert list(valid_losses(log)) == [1]

    # The signal goes only to the process that waits for the other two.
    log = by_fairseq(toy, plugin, parts, 5, tell={1: [["update", 12, "parent"]]})
    assert "TELLING parent AT 12" in log
    assert list(update_losses(log)) == list(range(8, 14))
    assert (parts / "stopped").read_text() == f"{updates(parts)}\n" == "13\n"
    assert largest_difference(whole / "checkpoint_last.pt", parts / "checkpoint_last.pt") <= 1e-5
