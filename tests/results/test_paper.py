"""The paper's tables beside our runs: each run finds its cell, and none is dropped."""

import json
from pathlib import Path

import pytest

from fairseq_floater.cli import main
from fairseq_floater.errors import ReportError
from fairseq_floater.results.paper import collect_paper_tables

SHARED = {"arch": "transformer_wmt_en_de", "source": "en", "target": "de", "seed": "1"}
DEFAULTS = {"encoder": "floater", "blocks": "all", "position_target": "qkv"}
OPTIONS = {"scratch": "no", "base": "yes", "options": ""}


def save_run(folder, bleu=27.0, *, test="test", sentences=3003, parameters=1_606_656, **settings):
    """A run's folder as `protocol.sh` leaves it; tokenised BLEU is one above, split BLEU two."""
    folder.mkdir(parents=True)
    settings = {**SHARED, **DEFAULTS, **OPTIONS, **settings}
    given = {key: str(value) for key, value in settings.items() if value is not None}
    (folder / "run.json").write_text(json.dumps({"settings": given}))
    (folder / "average.json").write_text(json.dumps({"position_parameters": parameters}))
    if bleu is not None:
        scores = {
            "bleu": {"score": bleu, "signature": "tok:13a"},
            "chrf": {"score": 60.0},
            "length_ratio": 0.98,
            "tokenised_bleu": {"score": bleu + 1, "signature": "split:no"},
            "compound_split_bleu": None,
            "sentences": sentences,
        }
        if settings["target"] == "de":
            scores["compound_split_bleu"] = {"score": bleu + 2, "signature": "split:yes"}
        (folder / f"scores.{test}.json").write_text(json.dumps(scores))
    return folder


def filled(tables):
    """The cells of Table 2 that have runs."""
    rows = tables.to_json_dict()["table_2"]
    return {(r["blocks"], r["encoder"], r["size"], r["pair"]): r for r in rows if r["runs"]}


def line(tables, start):
    [found] = [text for text in tables.format_text().splitlines() if text.startswith(start)]
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize(
    ("arch", "target", "size"),
    [
        ("transformer", "de", "base"),
        ("transformer_wmt_en_de", "fr", "base"),
        ("transformer_wmt_en_de_big", "de", "big"),
        ("transformer_vaswani_wmt_en_fr_big", "fr", "big"),
        ("floater_transformer_wmt_en_de_big", "fr", "big"),
    ],
)
@pytest.mark.parametrize("depth", ["run", "results/run", "results/seed1/run"])
def test_a_run_is_found_and_stands_in_its_cell(tmp_path, arch, target, size, depth):
    options = {"encoder": "learned", "blocks": "input", "position_target": "hidden"}
    save_run(tmp_path / depth, 30.25, arch=arch, target=target, **options)
    tables = collect_paper_tables(tmp_path)
    [(key, cell)] = filled(tables).items()
    assert key == ("input", "learned", size, f"en-{target}")
    assert cell["sacrebleu"]["mean"] == 30.25
    assert cell["tokenised"]["mean"] == (32.25 if target == "de" else 31.25)
    assert cell["runs"] == [depth]
    assert not tables.outside
    column = 3 + 2 * (size == "big") + (target == "fr")
    assert line(tables, "| input | learned | sacrebleu")[column] == f"{cell['paper']} / 30.25"
    tokenised = f"{cell['paper']} / {cell['tokenised']['mean']:.2f}"
    assert line(tables, "| input | learned | tokenised")[column] == tokenised


def test_what_was_not_run_is_a_dash(tmp_path):
    save_run(tmp_path / "run")
    tables = collect_paper_tables(tmp_path)
    cells = ["28.6 / 29.00", "41.6 / -", "29.2 / -", "42.7 / -"]
    assert line(tables, "| all | floater | tokenised")[3:] == cells
    text = tables.format_text()
    assert text.count(" / -") == 2 * (24 - 1) + 2 * 3 + 3
    assert "\nsacrebleu: tok:13a\ntokenised: split:yes\n" in text


def test_seeds_are_averaged_with_their_spread(tmp_path):
    for seed, bleu in (("1", 27.0), ("2", 27.5), ("3", 28.0)):
        save_run(tmp_path / f"seed{seed}" / "floater-all-qkv", bleu, seed=seed)
    [cell] = filled(collect_paper_tables(tmp_path)).values()
    assert cell["sacrebleu"] == {"mean": 27.5, "spread": 0.5, "runs": 3}
    assert cell["seeds"] == ["1", "2", "3"]
    row = line(collect_paper_tables(tmp_path), "| all | floater | sacrebleu")
    assert row[3] == "28.6 / 27.50 ± 0.50 (n = 3)"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"arch": "transformer_tiny"}, "transformer_tiny, en-de is not a column of Table 2"),
        ({"source": "de", "target": "en"}, "transformer_wmt_en_de, de-en is not a column"),
        ({"encoder": "none", "position_target": "hidden"}, "none is not a row of the paper's"),
        ({"encoder": "plain", "position_target": "None"}, "plain is not a row of the paper's"),
        ({"scratch": "yes"}, "was trained from random parameters"),
        ({"base": "no"}, "has no fairseq sinusoid"),
        ({"position_target": "hidden"}, "has target hidden, the row is for qkv"),
        ({"options": "--floater-delta 0.01"}, "has further options, --floater-delta 0.01"),
        ({"encoder": "rnn", "options": "--rnn-layers 2 --rnn-input vector"}, "is not in Table 6"),
        ({"encoder": "rnn", "blocks": "input"}, "is not in Table 6"),
        ({"encoder": "rnn", "target": "fr"}, "is not in Table 6"),
        ({"arch": None}, "its settings lack arch"),
        ({"bleu": None}, "is not scored yet"),
        ({"test": "bin_80_100"}, None),
    ],
)
def test_a_run_without_a_cell_is_listed_with_the_reason(tmp_path, settings, reason):
    save_run(tmp_path / "odd", **settings)
    tables = collect_paper_tables(tmp_path)
    in_cells = filled(tables) or any(r["runs"] for r in tables.to_json_dict()["table_6"])
    if reason is None:  # its only test set is taken
        assert in_cells
        return
    assert not in_cells
    [(run, why)] = tables.outside
    assert run == "odd"
    assert reason in why
    assert f"Not in the table:\n- odd: {why}" in tables.format_text()


def test_the_same_seed_of_another_experiment_is_no_second_seed(tmp_path):
    for name, bleu in (("a", 20.0), ("b", 40.0)):
        save_run(tmp_path / name / "floater-all-qkv", bleu)
    tables = collect_paper_tables(tmp_path)
    assert tables.to_json_dict()["outside"] == [
        {"run": "b/floater-all-qkv", "reason": "its cell already has seed 1, of a/floater-all-qkv"}
    ]
    assert "20.00" in tables.format_text() and "30.00" not in tables.format_text()


def test_a_cell_holds_runs_of_one_text_wmt14_before_others(tmp_path):
    save_run(tmp_path / "a" / "floater-all-qkv", 13.0, seed="2", sentences=1000)
    save_run(tmp_path / "b" / "floater-all-qkv", 14.0, seed="3")  # as many sentences
    for seed, bleu in (("1", 28.0), ("2", 29.0)):
        save_run(tmp_path / "table2" / seed / "floater-all-qkv", bleu, seed=seed, wmt14="en-de")
    tables = collect_paper_tables(tmp_path)
    assert line(tables, "| all | floater | sacrebleu")[3] == "28.6 / 28.50 ± 0.71 (n = 2)"
    reason = "has other data than table2/1/floater-all-qkv in its cell"
    assert tables.outside == [(f"{name}/floater-all-qkv", reason) for name in "ab"]


def test_a_run_without_settings_is_listed_too(tmp_path):
    save_run(tmp_path / "good")
    (save_run(tmp_path / "old") / "run.json").unlink()
    tables = collect_paper_tables(tmp_path)
    assert tables.outside == [("old", "has no settings")]
    assert len(filled(tables)) == 1


def test_of_several_test_sets_the_papers_is_taken(tmp_path):
    run = save_run(tmp_path / "run", 27.0, test="newstest2014")
    other = json.loads((run / "scores.newstest2014.json").read_text())
    other["bleu"]["score"] = 20.0
    for name in ("test", "long"):
        (run / f"scores.{name}.json").write_text(json.dumps(other))
    [cell] = filled(collect_paper_tables(tmp_path)).values()
    assert cell["sacrebleu"]["mean"] == 27.0
    [cell] = filled(collect_paper_tables(tmp_path, test="long")).values()
    assert cell["sacrebleu"]["mean"] == 20.0
    tables = collect_paper_tables(tmp_path, test="short")
    assert tables.outside == [("run", "has long, newstest2014, test, not short")]


def test_another_test_set_than_the_papers_is_starred(tmp_path):
    save_run(tmp_path / "run", sentences=500)
    tables = collect_paper_tables(tmp_path)
    assert line(tables, "| all | floater | sacrebleu")[3] == "28.6 / 27.00 *"
    assert "Starred: scored on a test set other than newstest2014" in tables.format_text()


def test_table_6_has_bleu_and_parameters(tmp_path):
    save_run(tmp_path / "flow", 27.0, seed=3, tokens_per_update=32768, processes="8 GPUs")
    rnn = {"encoder": "rnn", "parameters": 817_152}
    save_run(tmp_path / "rnn", 26.0, **rnn)
    save_run(tmp_path / "rnn2", 26.5, **rnn, options="--rnn-layers 2 --rnn-input scalar")
    save_run(tmp_path / "rnnv", 25.0, **rnn, options="--rnn-input vector")
    tables = collect_paper_tables(tmp_path)
    assert not tables.outside
    names = [row["runs"] for row in tables.to_json_dict()["table_6"]]
    assert names == [["flow"], ["rnn"], ["rnn2"], ["rnnv"]]
    first = ["floater", "28.57 / 27.00", "28.57 / 29.00", "526.3K / 1,606,656"]
    assert line(tables, "| floater |") == first
    # The run is listed once, though it fills a cell of each table.
    of = ["flow", "3", "27.00", "29.00", "3003", "1,606,656", "-", "32,768 (8 GPUs)"]
    assert line(tables, "| flow |") == of
    second = ["rnn, layers 2, scalar input", "28.16 / 26.50", "28.16 / 28.50", "526.3K / 817,152"]
    assert line(tables, "| rnn, layers 2") == second
    json.dumps(tables.to_json_dict())


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ReportError, match="holds no run"):
        collect_paper_tables(tmp_path)
    run = save_run(tmp_path / "run")
    (run / "scores.test.json").write_text("{")
    with pytest.raises(ReportError, match=r"scores\.test\.json cannot be read as JSON"):
        collect_paper_tables(tmp_path)


def test_the_scripts_settings_are_the_ones_that_are_read():
    """Every key that decides on a cell is a key that an experiment writes."""
    from fairseq_floater.experiments.stages import Experiment
    from fairseq_floater.experiments.system import System

    config = Path(__file__).resolve().parents[2] / "configs" / "text_base.yaml"
    assert {*SHARED, *DEFAULTS, *OPTIONS} <= Experiment(config).settings(System()).keys()


def test_the_command_shows_the_papers_numbers_wherever_a_run_answers_to_one(tmp_path, capsys):
    run = save_run(tmp_path / "wmt14" / "floater-all-qkv")
    assert main(["table", str(tmp_path)]) == 0  # runs of several experiments
    assert "| 28.6 / 29.00 |" in capsys.readouterr().out
    assert main(["table", str(run.parent)]) == 0  # one experiment: its own table, then the paper's
    out = capsys.readouterr().out
    assert out.index("| FLOATER, qkv, warm | 27.00 |") < out.index("| 28.6 / 29.00 |")
    save_run(run.parent / "plain", encoder="plain", position_target="None")
    assert main(["table", str(run.parent), "--paper"]) == 0
    out = capsys.readouterr().out
    assert "- plain: plain is not a row" in out and "system" not in out
    assert main(["table", str(run.parent), "--paper", "--figure", "x.png"]) == 2
