"""scripts/s2l.sh on a tiny corpus: from nothing to table and figure, a second run, and refusals."""

import json

import pytest
import yaml
from command_lines import value
from fuzzing import call
from toy import ROOT, run_script, tiny_config

SYSTEMS = [
    "sinusoidal-input-hidden-scratch",
    "rotation_flow-all-hidden-scratch-nobase-position-stretch_0.5_2.5",
]


@pytest.fixture(scope="module")
def s2l_config(tmp_path_factory):
    """The short-to-long configuration, cut down to seconds."""
    settings = tiny_config("numbers_s2l.yaml", 1)
    settings["data"]["numbers"].update({"test": 20, "test-long": 80})
    settings["s2l"].update({"edges": [24, 36], "max-per-bin": 6})
    settings["s2l"]["systems"] = [
        {"options": "--encoder sinusoidal --blocks input --scratch", "label": "fairseq's own"},
        "--encoder rotation_flow --no-base --scratch -- --position-stretch 0.5:2.5",
    ]
    settings["s2l"]["baseline"] = SYSTEMS[0]
    settings["generation"]["max-len-b"] = 10
    path = tmp_path_factory.mktemp("s2l") / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_from_corpus_to_figure(s2l_config):
    work = s2l_config.parent / "my work"
    options = ("--seeds", "7", "--jobs", "2", "--processes", "0")
    words = ("s2l.sh", s2l_config, "--work", work, *options)
    done = run_script(*words)
    assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads((work / "s2l.json").read_text())
    assert scores["systems"] == SYSTEMS and scores["baseline"] == SYSTEMS[0]
    assert list(scores["bins"]) == ["[1, 24)", "[24, 36)", "[36, inf)", "all"]
    for name, found in scores["bins"].items():
        assert found["sentences"] == (12 if name == "all" else 6)
        for system in SYSTEMS:
            assert found["systems"][system]["loss_bits_per_token"]["value"] > 0
            assert 0 <= found["systems"][system]["cut_off"] <= 1
    assert scores["length_limit"] == {"a": 0, "b": 10}
    table = (work / "s2l.md").read_text()
    assert "| fairseq's own" in table and "| rotation_flow, stretched |" in table
    assert table in done.stdout
    assert "never trained" in done.stdout
    assert (work / "s2l.png").stat().st_size > 10_000
    assert b"<svg" in (work / "s2l.svg").read_bytes()
    for system in SYSTEMS:
        record = json.loads((work / "seed-7" / system / "run.json").read_text())
        assert value(record["arguments"]["scratch"], "--seed") == "7"
    # A second run finds everything whole.
    before = {p: p.stat().st_mtime_ns for p in work.rglob("*.txt")}
    again = run_script(*words)
    assert again.returncode == 0, again.stderr[-3000:]
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*.txt")} == before
    assert (work / "s2l.md").read_text() in again.stdout


def test_a_dry_run_shows_every_seed_and_makes_nothing(s2l_config, tmp_path):
    shown = run_script(
        "s2l.sh", s2l_config, "--seeds", "1,2", "--dry-run", "--processes", "0", cwd=tmp_path
    )
    assert shown.returncode == 0, shown.stderr
    assert not any(tmp_path.iterdir())
    for seed in "12":
        assert f"seed-{seed}/{SYSTEMS[1]}/checkpoints --seed {seed}" in shown.stdout
        assert f"{SYSTEMS[1]}=work/tiny/seed-{seed}/{SYSTEMS[1]}/losses.test.txt" in shown.stdout
    assert "--position-stretch 0.5:2.5" in shown.stdout


def test_a_conversion_is_scored_before_and_after_training_on(tmp_path):
    config = ROOT / "configs" / "convert_numbers.yaml"
    shown = run_script("s2l.sh", config, "--dry-run", "--processes", "0", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    folder = "work/convert_numbers/seed-1/rope-all-attention"
    for name, mark in (("rope-all-attention-before", ".before"), ("rope-all-attention", "")):
        for kind, test in (("hypotheses", "generate.test"), ("short-losses", "losses.test_short")):
            assert f"--{kind} {name}={folder}/{test}{mark}.txt" in shown.stdout
    assert "'rope-all-attention-before=RoPE, before'" in shown.stdout
    assert shown.stdout.count(f"{folder}/warm_start.pt --gen-subset") == 4


def test_what_cannot_be_done_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, said = call("run-s2l")
    assert code == 2 and "the following arguments are required: CONFIG" in said
    code, _, said = call("run-s2l", ROOT / "configs" / "numbers_en_de.yaml")
    assert code == 2 and "not a short-to-long experiment" in said
    refused = run_script("s2l.sh", ROOT / "configs" / "text_s2l.yaml")
    assert refused.returncode == 2 and "pass its folder with --raw" in refused.stderr
    assert not any(tmp_path.iterdir())


def test_figure_2_of_the_paper_takes_the_raw_text_of_wmt14(tmp_path):
    config = ROOT / "configs" / "wmt14_en_de_s2l.yaml"
    done = run_script("s2l.sh", config, "--raw", "raw", "--work", tmp_path / "w", "--dry-run")
    assert done.returncode == 0, done.stderr
    split, *others = (line for line in done.stdout.splitlines() if " -m " in line)
    assert "raw" in split and "--threshold 80 --edges 80 100 120 140 --both-sides" in split
    trained = [line for line in others if "--finetune-from-model" in line]
    for encoder, line in zip(("floater", "sinusoidal", "learned"), trained, strict=True):
        assert f"--position-encoder {encoder} --position-blocks all" in line
