"""Tools and scripts killed at random moments and restarted: the undisturbed result, nothing half-written."""

import os
import signal

import pytest
from fault_tools import TOOLS, make_inputs
from faults import (
    await_change,
    contents,
    ended,
    fresh,
    kill_and_restart,
    start,
)

from fairseq_floater.files import remove_folder, write_text, write_whole

# Each tool's share of the kills; quick tools get the most.
SHARES = {
    "numbers": 40,
    "score": 36,
    "s2l split": 50,
    "s2l score": 20,
    "average": 20,
    "warm-start": 14,
    "table": 10,
    "plot positions": 8,
    "benchmark": 2,
    "prepare_text.sh": 14,
    "protocol.sh": 6,
    "s2l.sh": 2,
}
KILLS = int(os.environ.get("FLOATER_KILLS", "222"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("name", ["s2l split"])
def test_a_killed_tool_restarts_to_the_same_result(inputs, tmp_path, name):
    counts = kill_and_restart(TOOLS[name], tmp_path, inputs, kills=4)
    assert sum(counts.values()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_many_kills_lose_nothing(inputs, tmp_path, name):
    kills = max(2, round(KILLS * SHARES[name] / sum(SHARES.values())))
    counts = kill_and_restart(TOOLS[name], tmp_path, inputs, kills, seed=2)
    assert sum(counts.values()) == kills


def test_ctrl_c_is_one_word(inputs, tmp_path):
    folder = fresh(tmp_path / "run", inputs)
    # So many lines that the command is still at work on any machine.
    words = ["300000" if word == "2000" else word for word in TOOLS["numbers"].words]
    # A shell's background jobs ignore Ctrl-C, and children inherit that.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = start(TOOLS["numbers"], folder, words)
    finally:
        signal.signal(signal.SIGINT, ours)
    await_change(process, folder, "")  # before that, Python is still importing
    process.send_signal(signal.SIGINT)
    assert ended(process) == 130
    assert (folder / "messages").read_text() == "Interrupted.\n"
    assert not contents(folder, TOOLS["numbers"], hidden=True)


# Faults that the kills revealed, tested one by one.


def test_what_a_killed_writer_left_goes_with_the_next_writing(tmp_path):
    left = tmp_path / ".scores.json.part-abcdefgh"
    left.write_text("half a f")
    write_text(tmp_path / "scores.json", "whole")
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]


def test_a_writer_leaves_another_ones_file_alone(tmp_path):
    def write(outer):
        write_text(tmp_path / "scores.json", "the other's")
        assert outer.exists()
        outer.write_text("mine")

    write_whole(tmp_path / "scores.json", write)
    assert (tmp_path / "scores.json").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]


def test_a_folder_half_removed_by_a_kill_is_gone(tmp_path):
    left = tmp_path / ".data.gone"
    left.mkdir()
    (left / "file").touch()
    remove_folder(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
