"""Runs that were begun by earlier code go on, and end as an uninterrupted one did then."""

import json

import pytest
from make_stored_runs import RUNS, STORED, results, unpack
from toy import run as run_command

# Of printed losses: another CPU or torch sums float32 numbers in another order.
TOLERANCE = 0.002
EXPECTED = json.loads((STORED / "runs.json").read_text())


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_stored_run_goes_on_to_the_digits_of_a_whole_one(run, tmp_path):
    unpack(run, tmp_path)
    record = json.loads((tmp_path / run.folder / "run.json").read_text())
    done = run_command(run.command(), cwd=tmp_path)
    assert f"resuming from {run.folder}/checkpoints/checkpoint_last.pt" in done.stderr
    assert done.stderr.count("nothing to resume from") == 0
    ended, expected = results(run, tmp_path), EXPECTED[run.name]
    assert ended.keys() == expected.keys()
    for (update, loss), (of_whole, loss_of_whole) in zip(ended["updates"], expected["updates"]):
        assert update == of_whole and loss == pytest.approx(loss_of_whole, abs=TOLERANCE)
    assert ended["valid"] == pytest.approx(expected["valid"], abs=TOLERANCE)
    for name in run.results:
        assert ended[name] == pytest.approx(expected[name], abs=TOLERANCE)
    now = json.loads((tmp_path / run.folder / "run.json").read_text())
    assert record.keys() - now.keys() == set() and len(now["sessions"]) == 2
    assert record["arguments"].keys() - now["arguments"].keys() == set() and now["trained"]
