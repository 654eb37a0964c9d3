"""scripts/tasks.sh: a comparison for each task, exact match by length beside what is published."""

import argparse
import json
import re

import pytest
import yaml
from compared_runs import page_of, save_task
from fake_launcher import Laboratory
from number_systems import SINUSOID
from toy import ROOT, floater, run_script

from fairseq_floater.cli import main
from fairseq_floater.errors import UserError
from fairseq_floater.experiments import tables, tasks
from fairseq_floater.experiments.tasks import task_names

CONFIG = ROOT / "configs" / "tasks.yaml"


@pytest.fixture
def run_tasks(tmp_path, monkeypatch):
    """Run tasks in `w`; return the launcher that all of them use."""

    def run(*words, launcher=None):
        launcher = launcher or Laboratory()
        for module in (tables, tasks):
            monkeypatch.setattr(module, "Launcher", lambda **options: launcher)
        parser = argparse.ArgumentParser()
        parser.set_defaults(by_length=False)
        tasks.add_options(parser)
        places = ("--work", str(tmp_path / "w"), "--processes", "0", "--jobs", "1")
        tasks.run(parser.parse_args([str(CONFIG), *places, *words]))
        return launcher

    return run


def test_each_task_is_made_and_compared_on_its_own(run_tasks, tmp_path):
    words = ("--tasks", "scan:26,reverse", "--from", "here.txt", "--encoders", "rope")
    launcher = run_tasks(*words, "--also=--rope-learned", "--seeds", "1,2")
    rope = "rope-all-attention-scratch"
    names = (SINUSOID, rope, f"{rope}-rope-learned")  # the sinusoid does not take this option
    trained = [f"train {name}" for _ in "12" for name in names] * 2
    assert [step for step in launcher.steps if step.startswith("train")] == trained
    made = [words[4:] for words in launcher.commands if words[3:4] == ["tasks"]]
    work = str(tmp_path / "w")
    scan = ["scan", f"{work}/scan-26/text", "--cutoff", "26", "--from", "here.txt"]
    assert made == [scan, ["reverse", f"{work}/reverse/text"]]
    compared = [words for words in launcher.commands if words[3:4] == ["compare"]]
    assert [words[4] for words in compared] == [f"{work}/{n}/data" for n in ("scan-26", "reverse")]
    assert all("--exact-match" in words for words in compared)
    again = run_tasks(*words, "--also=--rope-learned", "--seeds", "1,2")
    assert again.steps == ["tasks", "prepare", "compare"] * 2


def test_a_task_that_fails_stops_no_other(run_tasks):
    launcher = Laboratory(fails="tasks")
    with pytest.raises(UserError, match="scan-9: .* the command failed.* reverse: .*"):
        run_tasks("--tasks", "scan:9,reverse", launcher=launcher)
    assert launcher.steps == ["tasks", "tasks"]
    for wrong in ("scan", "scan:x", "reverse:3", "revers", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="must be some of scan:CUTOFF, add"):
            task_names(wrong)


def test_published_numbers_stand_below_ours(tmp_path, capsys):
    shares = {"test": 0.5, "test, 26": 0.75, "test_short": 1.0}
    for name, parameters in {
        "scan-25": {"task": "scan", "cutoff": 25},
        "scan-26": {"task": "scan", "cutoff": 26},
        "sort": {"task": "sort"},
    }.items():
        bins = {
            group: {"systems": {"rope": {"exact_match": {"value": share, "spread": 0.01}}}}
            for group, share in shares.items()
        }
        save_task(tmp_path / name, parameters, {"labels": {"rope": "RoPE"}, "bins": bins})
    assert main(["table", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| exact match | test | test, 26 | test_short |" in printed
    assert printed.count("| RoPE | 0.500 ±0.010 | 0.750 ±0.010 | 1.000 ±0.010 |") == 3
    for row in (
        "length told* | 0.69 |  |",
        "t5, decoder* | 0.799 | 0.99 |",
        "length told* | 0.82 |  |",
    ):
        assert f"| *published: {row}  |" in printed
    assert printed.count("Kazemnejad et al. 2023") == 1  # once for the five rows of one source
    assert "sort:" in printed and "No published results are stored." in printed


def test_a_figure_of_tasks_has_a_row_for_each_system_and_published_row(tmp_path):
    """Told the length, a system has its dots in the row that it has without."""
    shares = {
        "scan-26": {"xl": 0.5, "xl.told_length": 1.0, "rope": 0.75},
        "sort": {"xl": 0.5, "t5": 0.25, "rope": 0.0},
    }
    labels = {"xl": "Transformer-XL", "rope": "RoPE", "t5": "T5"}
    labels["xl.told_length"] = "Transformer-XL, told length"
    for name, of in shares.items():
        scores = {n: {"exact_match": {"value": share}} for n, share in of.items()}
        scores["xl"]["exact_match"] |= {"low": 0.4, "high": 0.6, "per_seed": [0.4, 0.6]}
        report = {"labels": {n: labels[n] for n in of}, "bins": {"test": {"systems": scores}}}
        save_task(tmp_path / name, {"task": name.partition("-")[0], "cutoff": 26}, report)
    assert main(["table", str(tmp_path), "--figure", str(tmp_path / "tasks.svg")]) == 0
    text = re.findall("<!-- ([A-Za-z].*) -->", (tmp_path / "tasks.svg").read_text())
    rows = ["Transformer-XL", "published: xl, universal", "published: length told", "RoPE", "T5"]
    first, second = ["exact match", *rows, "scan-26"], ["exact match", "sort"]
    assert text[: len(first + second)] == first + second
    assert text[-3:] == ["as trained", "told length", "published"]


def test_words_go_the_whole_way_to_table_and_page(tmp_path):
    work, config = tmp_path / "work" / "reverse", tmp_path / "tiny.yaml"
    settings = yaml.safe_load(CONFIG.read_text())
    settings["compare"]["systems"] = settings["compare"]["systems"][:1]
    settings["shape"].update({"encoder-embed-dim": 32, "encoder-ffn-embed-dim": 32})
    settings["budget"]["scratch"].update({"max-update": 7, "save-interval-updates": 7})
    settings["generation"]["max-len-b"] = 12
    config.write_text(yaml.safe_dump(settings))
    sizes = ("--train", 300, "--valid", 10, "--test", 12)
    floater("tasks", "reverse", work / "text", *sizes)
    words = (config, "--work", work, "--raw", work / "text", "--processes", "0", "--jobs", "1")
    done = run_script("compare.sh", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    groups = json.loads((work / "compare.json").read_text())["bins"]
    lengths = sorted({*(work / "text" / "test.groups").read_text().split()}, key=int)
    assert [*groups] == ["test", *(f"test, {length}" for length in lengths), "test_short"]
    found = [group["systems"][SINUSOID]["exact_match"] for group in groups.values()]
    assert all(0 <= of_group["value"] <= 1 for of_group in found)
    scores = json.loads((work / "seed-1" / SINUSOID / "scores.test.json").read_text())
    assert scores["exact_match"]["score"] == found[0]["value"]
    assert "| exact match | test |" in floater("table", tmp_path / "work").stdout
    page = page_of(work)
    for text in ("Exact match by test set", "<h3>Exact match", f"<h3>test, {lengths[0]}</h3>"):
        assert text in page.text
