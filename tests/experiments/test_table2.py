"""Table 2 by script: a rehearsal in miniature on a stand-in for WMT14, and two nodes."""

import json
import random
import re
import socket
import subprocess
import time

import pytest
import torch
import wmt14_stand_in as stand_in
import yaml
from omegaconf import OmegaConf
from toy import ROOT, environment, killed, run

from fairseq_floater.experiments.paper_numbers import TABLE_2
from fairseq_floater.experiments.sections import read_yaml
from fairseq_floater.experiments.system import System

SCRIPT = ROOT / "scripts" / "table2.sh"
SMALL = {f"{stack}-{name}": size for stack in ("encoder", "decoder") for name, size in (
    ("embed-dim", 32), ("ffn-embed-dim", 32), ("layers", 2), ("attention-heads", 4),
)}  # fmt: skip


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """A folder with `archives` and with `configs`, the four of WMT14 cut down to seconds."""
    folder = tmp_path_factory.mktemp("a rehearsal")
    stand_in.build(folder / "archives", folder / "numbers")
    (folder / "configs").mkdir()
    for path in (ROOT / "configs").glob("wmt14_*.yaml"):
        config = OmegaConf.to_container(read_yaml(path))
        config["data"]["vocab"] = 60
        config["shape"].update(SMALL)
        config["optimisation"].update({"log-interval": 1, "warmup-updates": 4, "lr": 0.005})
        # fairseq would drop the one line that is held out.
        config["optimisation"].update({"required-batch-size-multiple": 1})
        french = config["languages"]["target"] == "fr"
        training = {"max-epoch": 1, "save-interval-updates": 2, "keep-interval-updates": 3}
        training["average-of"] = "updates"
        config["budget"].update({
            "max-tokens": 1500, "tokens-per-update": 3000, "average": 2,
            "donor": {"max-epoch": 2}, "finetune": training if french else {"max-epoch": 2},
        })  # fmt: skip
        (folder / "configs" / path.name).write_text(yaml.safe_dump(config))
    return folder


def words_of(miniature, work, only):
    return [
        *("bash", str(SCRIPT), "--configs", str(miniature / "configs"), "--work", str(work)),
        *("--mirror", str(miniature / "archives"), "--rehearsal", "--processes", "0"),
        *("--only", only),
    ]


def stopped_by_sigterm(command, log):
    """Start ``command``, wait for an update in ``log``, tell the script alone to stop."""
    process = subprocess.Popen(
        command, env=environment(), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not (log.exists() and "num_updates" in log.read_text(errors="replace")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


@pytest.mark.slow
def test_a_cell_stopped_and_restarted(miniature):
    """SIGTERM saves; the restarted cell averages updates within an epoch; the table has its scores."""
    work = miniature / "two cells"
    command = words_of(miniature, work, "base-en-fr-floater-all")
    code, output = stopped_by_sigterm(command, work / "wmt14_en_fr_base" / "plain" / "train.log")
    assert code == 143, output
    assert "Told to stop: run the same command to go on." in output
    assert (work / "wmt14_en_fr_base" / "plain" / "checkpoints" / "stopped").is_file()
    status = run([*command, "--status"]).stdout
    assert re.search(r"^base-en-fr-floater-all seed 1 +broken off", status, re.MULTILINE)

    table = run(command).stdout
    row = re.search(r"^\| all \| floater \| tokenised \|.*$", table, re.MULTILINE)[0]
    assert re.search(r"\| 41\.6 / [\d.]+ \* \|", row)
    assert "| base en-fr" not in table and "The runs behind these numbers" in table
    assert (work / "table2.md").read_text() == table
    found = json.loads((work / "table2.json").read_text())
    filled = [c for c in found["table_2"] if c["runs"]]
    assert [(c["encoder"], c["blocks"], c["pair"]) for c in filled] == [
        ("floater", "all", "en-fr"),
    ]
    folder = work / "wmt14_en_fr_base" / "seed-1" / "floater-all-qkv"
    inputs = json.loads((folder / "average.json").read_text())["inputs"]
    assert [bool(re.search(r"checkpoint_1_\d+\.pt$", i["path"])) for i in inputs] == [True, True]
    assert run([*command, "--status"]).stdout.splitlines()[-1] == "1 done"
    # Text is scored: the targets that fairseq prints are the raw references.
    lines = (folder / "generate.test.txt").read_text().splitlines()
    pairs = (line.removeprefix("T-").split("\t") for line in lines if line.startswith("T-"))
    targets = dict(sorted((int(number), text) for number, text in pairs))
    raw = (work / "data" / "en-fr" / "raw" / "test.fr").read_text().splitlines()
    assert list(targets.values()) == raw
    # Data of other subwords than the configuration's are refused.
    config = miniature / "configs" / "wmt14_en_fr_base.yaml"
    other = config.with_name("other.yaml")
    other.write_text(config.read_text().replace("subword-nmt", "sentencepiece"))
    words = ("--encoder", "plain", "--data", work / "data" / "en-fr", "--rehearsal")
    protocol = ROOT / "scripts" / "protocol.sh"
    refused = run(["bash", protocol, other, *words, "--work", work / "other"], code=1)
    assert "was made with bpe subword-nmt, not sentencepiece." in refused.stderr


@pytest.mark.slow
def test_all_settings_both_directions_killed_and_restarted(miniature):
    """Twelve cells whole, and again with SIGKILL at random moments: the same table to the last digit."""
    tables = {}
    for name, kills in (("whole", 0), ("killed", 12)):
        command = words_of(miniature, miniature / name, "base-*")
        moments = random.Random(3)
        for _ in range(kills):
            killed(command, moments.uniform(5, 60))
        run(command, timeout=3000)
        found = json.loads((miniature / name / "table2.json").read_text())
        tables[name] = [
            (cell["sacrebleu"], cell["tokenised"], cell["seeds"]) for cell in found["table_2"]
        ]
        assert sum(1 for cell in found["table_2"] if cell["runs"]) == 2 * len(TABLE_2)
    assert tables["killed"] == tables["whole"]


# Several nodes.

NODES = """#!/usr/bin/env bash
# A launcher of two nodes, both of this machine: what srun does.
"$@" & one=$!
"$@" & two=$!
wait "$one" && wait "$two"
"""


@pytest.mark.slow  # the same of fairseq's own commands: tests/transformer/test_distributed.py
def test_two_nodes_are_one_process_with_twice_the_batches(miniature, tmp_path):
    launcher = tmp_path / "launch"
    launcher.write_text(NODES)
    launcher.chmod(0o755)
    config = tmp_path / "numbers.yaml"
    settings = yaml.safe_load((ROOT / "configs" / "numbers_en_de.yaml").read_text())
    settings["data"]["numbers"].update({"train": 200, "valid": 20, "test": 8, "test-long": 8})
    settings["data"]["vocab"] = 130
    settings["shape"].update({"encoder-embed-dim": 32, "encoder-ffn-embed-dim": 32, "dropout": 0.0})
    settings["budget"].update({"max-tokens": 500, "tokens-per-update": 1000, "average": 1})
    settings["budget"]["scratch"] = {"max-epoch": 1}
    config.write_text(yaml.safe_dump(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes = ("--nodes", 2, "--launch", launcher, "--rendezvous", f"127.0.0.1:{port}")
    found, data = [], ()
    for name, words in (("one", ("--processes", 0)), ("two", ("--processes", 1, "--cpu", *nodes))):
        work = tmp_path / name
        system = ("--encoder", "floater", "--scratch", "--work", work, *data)
        run(["bash", ROOT / "scripts" / "protocol.sh", config, *system, *words])
        data = data or ("--data", work / "data")
        folder = work / System("floater", scratch=True).name
        found.append(torch.load(folder / "checkpoints" / "checkpoint1.pt", weights_only=True))
        settings = json.loads((folder / "run.json").read_text())["settings"]
        assert settings["tokens_per_update"] == "1000"
    assert settings["processes"] == "2 nodes x 1 CPU process"
    assert found[0]["model"].keys() == found[1]["model"].keys()
    for name, tensor in found[0]["model"].items():
        torch.testing.assert_close(found[1]["model"][name], tensor, rtol=0, atol=1e-5)
