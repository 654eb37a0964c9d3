"""`floater table`: runs, their scores and the figure of them."""

import json

import pytest

from fairseq_floater.cli import main
from fairseq_floater.errors import ReportError
from fairseq_floater.experiments.system import System
from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure
from fairseq_floater.results.table import collect as collect_results


def save_run(folder, name, bleu, before=None, system=None, seed="1"):
    run = folder / name
    run.mkdir(parents=True)
    if system is not None:
        (run / "run.json").write_text(json.dumps({"settings": {**system.settings(), "seed": seed}}))
    metric = {"signature": f"sig:{name[0]}", "mean": bleu, "half_width": 1.5}
    scores = {"bleu": {"score": bleu, **metric}, "chrf": {"score": 60.0}, "length_ratio": 0.98}
    (run / "scores.test.json").write_text(json.dumps(scores))
    costs = {"position_parameters": 1234, "training_seconds": 61.4}
    (run / "average.json").write_text(json.dumps(costs))
    if before is not None:
        (run / "before.json").write_text(json.dumps({"loss": before}))


def test_the_table_holds_every_run_with_its_signature(tmp_path):
    save_run(tmp_path, "floater-all-qkv", 31.25, before=2.5)
    save_run(tmp_path, "plain", 30.5)
    text = collect_results(tmp_path).format_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2].startswith("| plain | 30.50 [29.0, 32.0] | 60.0 | 0.98 | 1,234 | 61 | - |")
    assert rows[3].startswith("| floater-all-qkv | 31.25")
    assert rows[3].endswith("| 2.500 |")
    assert "test: sig:p" in text
    assert "test: sig:f" in text


@pytest.mark.parametrize("name", ["scores.test.json", "average.json", "before.json", "run.json"])
@pytest.mark.parametrize("text", ["{}", "[]", '{"bleu": 3}'])
def test_results_of_another_shape_are_refused_in_a_sentence(tmp_path, capsys, name, text):
    save_run(tmp_path, "plain", 30.5)
    (tmp_path / "plain" / name).write_text(text)
    refused = name != "run.json" or text == "[]"
    assert main(["table", str(tmp_path)]) == refused
    said = capsys.readouterr().err
    assert not refused or f"{name}: the content" in said and len(said.splitlines()) == 1


def test_runs_of_seeds_are_named_by_them(tmp_path):
    work = tmp_path / "work" / "text"
    for name in ("seed-1/plain", "seed-2/rope-all-attention"):
        save_run(work, name, 30.5)
    found = [run.name for run in collect_results(work).runs]
    assert found == ["seed-1/plain", "seed-2/rope-all-attention"]
    with pytest.raises(ReportError, match=f"such as {work}\\."):
        collect_results(work.parent)


def test_systems_are_shown_by_their_short_label(tmp_path):
    stretched = ("--position-stretch", "0.5:2.5")
    system = System("rotation_flow", base=False, scratch=True, options=stretched)
    save_run(tmp_path / "demo", system.name, 30.5, system=system)
    save_run(tmp_path / "demo", "plain", 30.5)
    results = collect_results(tmp_path / "demo")
    assert list(results.labels.values()) == ["plain", "rotation_flow, stretched"]
    assert "| rotation_flow, stretched | 30.50" in results.format_text()
    for seed in "12":
        save_run(tmp_path / "seeds", f"seed-{seed}/{system.name}", 30.5, system=system, seed=seed)
    results = collect_results(tmp_path / "seeds")
    names = ["rotation_flow, stretched, seed 1", "rotation_flow, stretched, seed 2"]
    assert list(results.labels.values()) == names
    rows = [(run["label"], run["seed"]) for run in results.to_json_dict()["runs"]]
    assert rows == [("rotation_flow, stretched", "1"), ("rotation_flow, stretched", "2")]
    # Two systems that would share a label keep their names.
    wider = System("rope", scratch=True, options=("--position-stretch", "0.5:4"))
    for other in (wider, System("rope", scratch=True, options=stretched)):
        save_run(tmp_path / "both", other.name, 30.5, system=other)
    labels = collect_results(tmp_path / "both").labels
    assert list(labels) == list(labels.values())


def test_the_legend_of_long_names_is_whole(tmp_path):
    names = ["plain", "rotation_flow-all-hidden-scratch-nobase-position-stretch_0.5_2.5"]
    with new_figure(tmp_path / "scores.png", 1, 4) as (figure, (axes,)):
        grouped_bars(axes, ["test"], names, {("test", name): Bar(1.0) for name in names})
        legend(figure, axes)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("words", [["table"], ["table", "--paper"], ["page"]])
def test_the_folder_of_a_run_is_not_that_of_its_experiment(tmp_path, capsys, words):
    run = tmp_path / "work" / "floater-all-qkv"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    last = [str(tmp_path / "page.html")] if words == ["page"] else []
    assert main([words[0], str(run), *words[1:], *last]) == 1
    assert f"give the folder that holds the runs, {run.parent}." in capsys.readouterr().err
