"""The scripts as a person runs them, on an experiment that takes seconds."""

import json

import pytest
import yaml
from toy import floater, run_script, tiny_config


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The demo's configuration, cut down to seconds; a path with a space in it."""
    path = tmp_path_factory.mktemp("with a space") / "toy.yaml"
    path.write_text(yaml.safe_dump(tiny_config("numbers_en_de.yaml", 2)))
    return path


@pytest.fixture(scope="module")
def finished(config):
    """FLOATER through the whole protocol."""
    work = config.parent / "my work"
    done = run_script("protocol.sh", config, "--encoder", "floater", "--work", work)
    assert done.returncode == 0, done.stderr[-3000:]
    return work


def test_the_protocol_leaves_every_result(finished):
    folder = finished / "floater-all-qkv"
    for test in ("test", "test_long"):
        scores = json.loads((folder / f"scores.{test}.json").read_text())
        assert scores["sentences"] == {"test": 12, "test_long": 10}[test]
        assert "tok:13a" in scores["bleu"]["signature"]
    average = json.loads((folder / "average.json").read_text())
    assert [i["path"].rsplit("/", 1)[1] for i in average["inputs"]] == [
        "checkpoint1.pt",
        "checkpoint2.pt",
    ]
    warm = json.loads((folder / "warm_start.json").read_text())
    assert warm["difference"] < 0.1
    before = json.loads((folder / "before.json").read_text())
    # Up to the effect of the small flow, this is the donor's best validation loss as its log has it.
    log = (finished / "plain" / "train.log").read_text()
    donor = float(log.rsplit("best_loss ", 1)[1].split()[0])
    assert before["loss"] == pytest.approx(donor, abs=0.05)
    record = json.loads((folder / "run.json").read_text())
    assert "--finetune-from-model" in record["arguments"]["finetune"]
    assert record["trained"] and record["state"] == "done"
    assert record["settings"]["name"] == "floater-all-qkv"


def test_the_table_of_the_runs(finished):
    done = floater("table", finished, "--figure", finished / "f.png")
    assert "| FLOATER, qkv, warm |" in done.stdout
    assert (finished / "f.png").stat().st_size > 5_000
