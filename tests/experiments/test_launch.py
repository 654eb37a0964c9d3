"""Commands as they are started: shown, logged, stopped; GPUs; several at a time; the screen."""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest
from toy import environment

from fairseq_floater.errors import UserError
from fairseq_floater.experiments import launch
from fairseq_floater.experiments.cells import Cell, run_cells
from fairseq_floater.experiments.launch import BusyError, CommandError, Launcher, StoppedError
from fairseq_floater.experiments.screen import Screen, TrainingLine, duration


def test_a_dry_run_prints_and_runs_nothing(tmp_path, capsys):
    Launcher(dry_run=True).run(["touch", tmp_path / "a b", Path("-x")], log=tmp_path / "log")
    assert shlex.split(capsys.readouterr().out) == ["touch", f"{tmp_path}/a b", "./-x"]
    assert list(tmp_path.iterdir()) == []


def test_output_and_messages_go_where_they_belong(tmp_path):
    command = ["bash", "-c", "echo result; echo message >&2"]
    log, output = tmp_path / "log", tmp_path / "output"
    for _ in range(2):
        Launcher().run(command, log=log, output=output)
    assert output.read_text() == "result\n"
    assert log.read_text() == f"+ {shlex.join(command)}\nmessage\n" * 2


def test_a_failure_shows_the_end_of_the_log_and_names_it(tmp_path, capfd):
    log = tmp_path / "log"
    with pytest.raises(CommandError, match=r"plain: the command failed; see the end of .*log\."):
        Launcher().run(["bash", "-c", "echo the reason; exit 3"], name="plain", log=log)
    assert "the reason\n" in capfd.readouterr().err
    with pytest.raises(CommandError, match="no-such-command cannot be started: No such file"):
        Launcher().run(["no-such-command"])


PARENT = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run behind nohup
sys.argv[0] = "floater"  # which needs no fairseq
from fairseq_floater.experiments.launch import Launcher
launcher = Launcher()
with launcher.signals():
    launcher.run(["bash", "-c", sys.argv[1]])
    launcher.run(["touch", "next"])
"""
CHILD = 'trap "touch ended; exit" TERM; touch begun; for i in {1..600}; do sleep 0.1; done'


@pytest.mark.parametrize(
    ("which", "send"),
    [
        *((number, os.kill) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        *((number, os.killpg) for number in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_a_stopped_script_stops_what_it_runs(tmp_path, which, send):
    """A signal to the script, or to its whole group as from a terminal, ends its command; nothing follows."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        # A shell's background jobs ignore SIGINT, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
    send(process.pid, which)
    assert "Told to stop: run the same command to go on." in process.communicate()[1]
    assert process.returncode == 143
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "next").exists()


class Task:
    """A run that takes no time; number 1 fails."""

    def __init__(self, number, begun, error, launcher):
        self.number, self.begun, self.error = number, begun, error

    def run(self):
        self.begun.append(self.number)
        if self.number == 1 and self.error:
            raise self.error


def cells(begun, error=None, numbers=range(4)):
    return [Cell(f"system {n}", Path(str(n)), partial(Task, n, begun, error)) for n in numbers]


def test_side_by_side_nothing_begins_after_a_failure(capsys):
    begun = []
    outcome = run_cells(cells(begun, UserError("the reason")), Launcher(), stop_early=True)
    assert outcome == ({"system 1": "the reason"}, []) and begun == [0, 1]
    assert "system 1: the reason" in capsys.readouterr().err
    with pytest.raises(StoppedError):
        run_cells(cells(begun, StoppedError(), range(2)), Launcher(), 2)
    begun.clear()
    assert run_cells(cells(begun, BusyError()), Launcher(), 2) == ({}, ["system 1"])
    assert sorted(begun) == [0, 1, 2, 3]


def test_commands_of_each_job_have_its_variables(tmp_path):
    launcher = Launcher(job_environments=[{"GPU": "0"}, {"GPU": "1"}])
    both = Barrier(2)

    def job(number, launcher):
        both.wait()  # until both threads have begun
        launcher.run(["printenv", "GPU"], output=tmp_path / number)

    tasks = [
        Cell(n, Path(n), lambda of, n=n: SimpleNamespace(run=lambda: job(n, of))) for n in "ab"
    ]
    assert run_cells(tasks, launcher, 2) == ({}, [])
    assert {(tmp_path / n).read_text() for n in "ab"} == {"0\n", "1\n"}
    launcher.run(["printenv", "GPU"], output=tmp_path / "main")
    assert (tmp_path / "main").read_text() == "0\n"


def test_what_is_told_to_stop_begins_nothing(tmp_path):
    launcher = Launcher()
    launcher._stop(signal.SIGTERM, None)
    with pytest.raises(StoppedError) as error:
        launcher.run(["touch", tmp_path / "next"])
    assert error.value.code == 143
    assert not (tmp_path / "next").exists()


# The screen.

LOG = """2026-11-22 | INFO | fairseq_cli.train | num. shared model params: 1 error-free
2026-11-22 | INFO | train_inner | epoch 001:      2 / 8 loss=8.015, nll_loss=7.9, ppl=3, num_updates=2, lr=1
2026-11-22 | INFO | train_inner | epoch 001:      4 / 8 loss=7.5, nll_loss=7.9, ppl=3, num_updates=4, lr=1
2026-11-22 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 6.496 | ppl 9
2026-11-22 | WARNING | fairseq.trainer | overflow
"""


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    line = TrainingLine(Screen(), "plain", ["bin", "--max-epoch", "2"])
    for text in LOG.splitlines():
        line.read(text)
    line.close()
    said = [re.sub(r"^\[[\d:]+\] ", "", text) for text in capsys.readouterr().err.splitlines()]
    assert said == [
        "plain: epoch 1, update 2 of 16, loss 8.015",
        "plain: epoch 1, update 4 of 16, loss 7.5, 0 s left",
        "plain: epoch 1, validation loss 6.496",
        "plain: fairseq.trainer | overflow",
    ]


def test_progress_is_one_live_line_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    line = TrainingLine(Screen(), "plain", ["bin", "--max-epoch", "2", "--max-update", "10"])
    for text in LOG.splitlines():
        line.read(text)
    line.close()
    shown = terminal.getvalue()
    assert "plain: epoch 1, update 4 of 10, loss 7.5" in shown
    assert "validation loss 6.496\n" in shown
    assert "loss 7.5\n" not in shown


def test_of_several_systems_it_says_which_one_and_how_many_are_done(capsys):
    screen = Screen(systems=3, left=lambda: "about 2.0 h left in all")
    with screen.system("a", Path("w/a")):
        pass
    with pytest.raises(UserError), screen.system("b", Path("w/b")):
        raise UserError("failed")
    said = capsys.readouterr().err
    assert "a: run 1 of 3" in said and "b: run 2 of 3" in said
    assert "a: done in 0 s; everything is in w/a; 1 of 3 runs, about 2.0 h left in all\n" in said
    assert "b: done" not in said


def test_durations_are_told_as_a_person_would():
    assert [duration(s) for s in (45, 720, 12_600)] == ["45 s", "12 min", "3.5 h"]


def test_a_command_that_starts_as_the_stop_comes_is_told_too(tmp_path, monkeypatch):
    launcher, start = Launcher(), subprocess.Popen

    def stopped_meanwhile(*args, **options):
        child = start(*args, **options)
        launcher._stop(signal.SIGTERM, None)
        return child

    monkeypatch.setattr(subprocess, "Popen", stopped_meanwhile)
    with pytest.raises(StoppedError):
        launcher.run(["bash", "-c", f"sleep 5 & wait; touch {tmp_path}/late"])
    assert not (tmp_path / "late").exists()


def test_a_command_without_progress_is_said_to_be_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_QUIET", 0.1)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    Launcher().run(["sleep", "0.7"], name="split", log=tmp_path / "log")
    assert f"split: running for 0 s; log in {tmp_path / 'log'}" in said.getvalue()
