"""Tables 3 to 5 beside what fine-tunings have scored."""

import json
import statistics

from toy import floater

from fairseq_floater.experiments.paper_numbers import TABLES_345
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.results.cli import Joined
from fairseq_floater.results.understanding import (
    CellKey,
    chance_level,
    collect_understanding,
    published_size,
)


def finetuning(work, size, task, system, seed, **scores):
    """A fine-tuning's folder, scored."""
    folder = work / f"roberta_{size}" / f"{task}-{system}" / f"seed-{seed}"
    folder.mkdir(parents=True)
    settings = {"experiment": "roberta", "size": size, "task": task, "system": system}
    with RunFolder(folder).changing() as record:
        record["settings"] = {**settings, "seed": str(seed), "recipe_updates": "203.6"}
        record["updates_an_epoch"] = 156
    if scores:
        (folder / "scores.json").write_text(json.dumps(scores))
    return folder


def stage(work, name, after=True):
    folder = work / "roberta_base" / name
    folder.mkdir(parents=True)
    for file, bits in (("before", 4.64), ("after", 3.5))[: 1 + after]:
        bins = [{"first": 0, "last": 31, "bits": 2.9}, {"first": 32, "last": 119, "bits": bits}]
        found = {"bins": bins, "all": {"first": 0, "last": 119, "bits": bits}}
        (folder / f"{file}.json").write_text(json.dumps(found))


def cell(tables, *key):
    return tables.cells[CellKey(*key)]


def test_a_cell_has_median_and_range_of_its_seeds(tmp_path):
    scores = [78.3, 80.1, 79.4, 77.6, 80.9]
    for seed, score in enumerate(scores, 1):
        finetuning(tmp_path, "base", "rte", "floater", seed, score=score, n=277)
    finetuning(tmp_path, "base", "rte", "roberta", 1, score=78.0, n=277)
    finetuning(tmp_path, "base", "rte", "roberta", 2)  # not scored yet
    tables = collect_understanding(tmp_path)
    found = cell(tables, "base", "floater", "rte", "score")
    assert found.format() == "80.5 / 79.40 [77.6, 80.9] (n = 5)"
    assert found.to_json_dict()["median"] == statistics.median(scores)
    assert cell(tables, "base", "roberta", "rte", "score").format() == "78.7 / 78.00"
    assert cell(tables, "base", "floater", "cola", "score").format() == "63.4 / -"
    text = tables.format_text()
    assert "| base | floater | 63.4 / - | 95.1 / - |" in text
    assert "large" not in text and "Table 4" not in text
    assert "base rte: 156 updates an epoch, in the recipe 204" in text


def test_race_and_squad_have_a_number_a_column(tmp_path):
    finetuning(tmp_path, "large", "race", "floater", 1, score=83.0, middle=87.0, high=81.0, n=4934)
    finetuning(tmp_path, "large", "squad1", "roberta", 1, exact=88.0, f1=94.0, total=10570)
    squad2 = {"exact": 85.0, "f1": 88.0, "best_exact": 86.0, "best_f1": 89.0, "total": 99}
    finetuning(tmp_path, "large", "squad2", "floater", 1, **squad2)
    text = collect_understanding(tmp_path).format_text()
    assert "| large | floater | 83.3 / 83.00 | 87.1 / 87.00 | 81.7 / 81.00 |" in text
    squad = "| large | floater | 88.9 / - | 94.6 / - | 86.6 / 85.00 * | 89.5 / 88.00 * |"
    assert f"{squad} 86.6 / 86.00 * | 89.5 / 89.00 * |" in text
    assert "Starred: the number of examples differs from the published set" in text


def test_systems_and_sizes_that_the_paper_has_not(tmp_path):
    finetuning(tmp_path, "tiny", "sts-b", "t5", 1, score=95.0, n=100)
    tables = collect_understanding(tmp_path)
    assert cell(tables, "tiny", "t5", "sts-b", "score").format() == "- / 95.00 *"
    assert "| tiny | t5 |" in tables.format_text()


def test_chance_is_the_most_frequent_answer(tmp_path):
    data = tmp_path / "data"
    for task, name, text in (
        ("rte", "valid.tsv", "index\tlabel\n0\tentailment\n1\tnot_entailment\n2\tentailment\n"),
        ("cola", "valid.tsv", "index\tlabel\n0\t1\n"),
        ("race-96", "test.json", json.dumps(
            {i: {"answer": "AABC"[i], "group": "high" if i else "middle"} for i in range(4)})),
        ("squad2", "valid.json", json.dumps({"data": [{"paragraphs": [
            {"qas": [{"answers": []}, {"answers": [{"text": "x"}]}]}]}]})),
    ):  # fmt: skip
        (data / task).mkdir(parents=True)
        (data / task / f"references.{name}").write_text(text)
    places = [("cola", "score"), ("race", "score"), ("race", "middle"), ("squad2", "f1")]
    levels = [chance_level(data, task, name) for task, name in places]
    assert levels == [0.0, 50.0, 100.0, 50.0]
    assert chance_level(data, "qnli", "score") is None
    finetuning(tmp_path, "base", "rte", "floater", 1, score=60.0, n=3)
    text = collect_understanding(tmp_path).format_text()
    assert [line.split(" | ")[-1] for line in text.splitlines() if "chance |" in line] == ["66.7 |"]


def test_a_second_run_of_a_seed_replaces_nothing(tmp_path):
    finetuning(tmp_path, "base", "rte", "floater", 1, score=77.0, n=277)
    (tmp_path / "roberta_base").rename(tmp_path / "a")
    folder = finetuning(tmp_path, "base", "rte", "floater", 1, score=60.0, n=277)
    tables = collect_understanding(tmp_path)
    assert cell(tables, "base", "floater", "rte", "score").scores == {"1": 77.0}
    reason = "its cell already has seed 1"
    assert f"Not in a table: {folder}: {reason}" in tables.format_text()
    both = Joined([tables, tables]).to_json_dict()["outside"]
    assert both == 2 * [{"run": str(folder), "reason": reason}]


def test_the_published_sizes():
    sizes = {task: published_size(task) for _, task in TABLES_345}
    assert sizes["rte"] == 277 and sizes["mnli"] == 9815 and sizes["race"] == 4934
    assert (sizes["squad1"], sizes["squad2"]) == (10570, 11873)


def test_the_masked_lm_stages_are_shown(tmp_path):
    stage(tmp_path, "flow")
    stage(tmp_path, "mlm-t5", after=False)
    text = collect_understanding(tmp_path).format_text()
    assert "| roberta_base | flow | 32-119 | 4.640 -> 3.500 |" in text
    assert "| roberta_base | mlm-t5 | all | 4.640 -> - |" in text


def test_the_verb_shows_them_unasked(tmp_path):
    finetuning(tmp_path / "work", "base", "rte", "floater", 1, score=60.0, n=277)
    result = tmp_path / "table.json"
    done = floater("table", tmp_path / "work", "--json", result)
    assert "80.5 / 60.00" in done.stdout
    found = json.loads(result.read_text())["tables_3_to_5"]
    [filled] = [c for c in found if c["seeds"]]
    assert (filled["paper"], filled["median"], filled["seeds"]) == (80.5, 60.0, {"1": 60.0})
    # One configuration's folder alone shows the same.
    assert "80.5 / 60.00" in floater("table", tmp_path / "work" / "roberta_base").stdout
    assert "There is no folder" in floater("table", tmp_path / "nothing", code=1).stderr


def test_the_folder_may_be_the_one_that_one_is_in(tmp_path, monkeypatch):
    finetuning(tmp_path, "base", "rte", "floater", 1, score=80.0, n=277)
    stage(tmp_path, "flow")
    monkeypatch.chdir(tmp_path / "roberta_base")
    tables = collect_understanding(".")
    assert cell(tables, "base", "floater", "rte", "score").scores == {"1": 80.0}
    assert tables.folder == "." and "roberta_base" in tables.format_text()  # of the stage
