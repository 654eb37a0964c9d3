"""The steps of the experiment with RoBERTa: in order, each once, and resumed after kills."""

import argparse
import json
import random

import pytest
import roberta_toy
import yaml
from command_lines import value
from fake_launcher import RobertaLauncher, write
from toy import ROOT, killed, run

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import ReportError, UsageError, UserError
from fairseq_floater.experiments.roberta.cells import cells_of, entries_of
from fairseq_floater.experiments.roberta.finetuning import FineTuning
from fairseq_floater.experiments.roberta.protocol import MaskedLmJob
from fairseq_floater.experiments.roberta.stages import RobertaExperiment, RobertaRequest
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.system import PLAIN, System

TINY, BASE = (ROOT / "configs" / f"roberta_{size}.yaml" for size in ("tiny", "base"))


def asked(work, encoder="floater", config=TINY, **more):
    return RobertaRequest(RobertaExperiment(config), System(encoder), work, **more)


def finetune(work, launcher, encoder="floater", task="rte", **more):
    FineTuning(asked(work, encoder, **more), task, launcher).run()
    return launcher.steps


TEXT = ["quizzes", "prepare_mlm.sh"]
FLOW = ["warm-start", "position-loss", "train flow", "position-loss"]


def test_the_steps_of_each_system(tmp_path):
    after = ["train seed-1", "predict valid", "glue score"]
    first = finetune(tmp_path, RobertaLauncher())
    assert first == [*TEXT, "train donor", "glue prepare", *FLOW, *after]
    # Donor, flow stage and data exist; the prepare verbs only check that the data are current.
    assert finetune(tmp_path, RobertaLauncher(), PLAIN) == [*TEXT, "glue prepare", *after]
    second = finetune(tmp_path, RobertaLauncher(), seed=2)
    assert second == [*TEXT, "glue prepare", "train seed-2", *after[1:]]
    other = finetune(tmp_path, RobertaLauncher(), "t5", task="race")
    stage = [*FLOW[:2], "train mlm-t5", FLOW[3]]
    scores = ["predict test", "race score", "predict valid", "race score"]
    assert other == [*TEXT, "race prepare", *stage, "train seed-1", *scores]


def test_a_second_run_skips_what_is_whole(tmp_path):
    finetune(tmp_path, RobertaLauncher())
    record = tmp_path / "roberta_tiny" / "rte-floater" / "seed-1" / "run.json"
    before = record.read_text()
    assert finetune(tmp_path, RobertaLauncher()) == [*TEXT, "glue prepare"]
    assert record.read_text() == before
    (tmp_path / "roberta_tiny" / "rte-floater" / "seed-1" / "scores.json").unlink()
    assert finetune(tmp_path, RobertaLauncher()) == [*TEXT, "glue prepare", "glue score"]


def test_cells_of_any_configuration_lie_where_its_runs_do(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(TINY.read_text())
    finetune(tmp_path, RobertaLauncher(), config=mine, seed=2)
    args = argparse.Namespace(work=tmp_path, seeds=[2])
    cells = cells_of(args, entries_of(RobertaExperiment(mine)))
    scored = [cell.name for cell in cells if (cell.folder / "scores.json").is_file()]
    assert scored == ["glue-mine-rte-floater"]


def test_the_record_says_what_was_run(tmp_path):
    launcher = RobertaLauncher()
    finetune(tmp_path, launcher)
    folder = tmp_path / "roberta_tiny"
    record = RunFolder(folder / "rte-floater" / "seed-1").read()
    assert record["trained"] and record["state"] == "done"
    assert record["tokens"] == {"finetune": "64"} and record["updates_an_epoch"] == 156
    settings = record["settings"]
    assert (settings["task"], settings["system"], settings["size"]) == ("rte", "floater", "tiny")
    flow = RunFolder(folder / "flow").read()
    assert flow["trained"] and flow["state"] == "done" and flow["settings"]["system"] == "floater"
    assert RunFolder(folder / "donor").read()["trained"]
    assert any(
        "64 examples an update (64 x --update-freq 1, 1 CPU process)" in s for s in launcher.said
    )


def test_updates_an_epoch_are_said_beside_the_recipes(tmp_path):
    donor = tmp_path / "donor.pt"
    donor.touch()
    launcher = RobertaLauncher()
    finetune(tmp_path / "w", launcher, PLAIN, config=BASE, donor=donor, raw=tmp_path)
    assert any("156 updates an epoch; the recipe's: 204" in text for text in launcher.said)


def test_a_batch_of_another_size_is_refused(tmp_path):
    finetune(tmp_path, RobertaLauncher())
    folder = RunFolder(tmp_path / "roberta_tiny" / "rte-floater" / "seed-1")
    with folder.changing() as record:
        record["tokens"]["finetune"] = "16"
    with pytest.raises(ReportError, match="batch was 16 and is 64 now"):
        finetune(tmp_path, RobertaLauncher())
    with folder.changing() as record:  # each process may take another share of the batch
        record["tokens"]["finetune"] = "64"
        words = record["arguments"]["finetune"]
        words[words.index("--batch-size") + 1] = "8"
    finetune(tmp_path, RobertaLauncher())


@pytest.mark.parametrize("system", [PLAIN, "floater"])
@pytest.mark.parametrize("changed", ["donor", "flow"])
def test_runs_belong_to_what_they_started_from(tmp_path, system, changed):
    """A retrained donor has the name of the old one."""
    finetune(tmp_path, RobertaLauncher(), system)
    folder = tmp_path / "roberta_tiny" / changed / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint_best.pt").write_bytes(b"another")
    if (system, changed) == (PLAIN, "flow"):
        assert finetune(tmp_path, RobertaLauncher(), system) == [*TEXT, "glue prepare"]
        return
    with pytest.raises(UserError, match="was not started from .*checkpoint_best"):
        finetune(tmp_path, RobertaLauncher(), system)


def test_options_that_act_after_a_training_are_obeyed(tmp_path):
    finetune(tmp_path, RobertaLauncher())
    other = tmp_path / "other" / TINY.name
    other.parent.mkdir()
    text = TINY.read_text().replace("bins: [32, 64, 92, 120]", "bins: [60, 120]")
    other.write_text(text.replace("  glue:\n", "  glue:\n    checkpoint: last\n"))
    again = [*TEXT, "glue prepare", "position-loss", "position-loss", "predict valid", "glue score"]
    assert finetune(tmp_path, RobertaLauncher(), config=other) == again
    assert finetune(tmp_path, RobertaLauncher(), config=other) == [*TEXT, "glue prepare"]
    with pytest.raises(UserError, match="was started with another `--extend`"):
        finetune(tmp_path, RobertaLauncher(), config=other, extend="tile")


# Donors.


def test_a_given_donor_is_remembered(tmp_path):
    donor, work = tmp_path / "d" / "base.pt", tmp_path / "w"
    donor.parent.mkdir()
    donor.write_text("one")
    steps = finetune(work, RobertaLauncher(), PLAIN, config=BASE, donor=donor, raw=tmp_path)
    assert "train donor" not in steps
    job = FineTuning(asked(work, PLAIN, config=BASE), "rte", RobertaLauncher())
    assert job.given_donor == donor
    assert job._text_command()[-2:] == ["--dict", donor.parent / "dict.txt"]
    other = tmp_path / "other.pt"
    other.write_text("two")
    with pytest.raises(ReportError, match="was begun with another donor"):
        finetune(work, RobertaLauncher(), PLAIN, config=BASE, donor=other)
    with pytest.raises(UserError, match=r"There is no donor .*nothing\.pt"):
        finetune(tmp_path / "x", RobertaLauncher(), config=BASE, donor=tmp_path / "nothing.pt")


@pytest.mark.parametrize("system", [PLAIN, "floater"])
def test_donors_of_other_subwords_are_refused(tmp_path, system):
    """fairseq itself compares only the number of words."""
    donor = roberta_toy.save_model(tmp_path / "donor" / "roberta.pt")
    roberta_toy.save_dictionary(donor.parent)
    text = {"config": ROOT / "configs" / "roberta_text.yaml", "raw": tmp_path, "donor": donor}
    words = (donor.parent / "dict.txt").read_text()
    write(tmp_path / "same" / "data" / "mlm" / "dict.txt", words)
    finetune(tmp_path / "same", RobertaLauncher(), system, task="qnli", **text)
    backwards = "".join(reversed(words.splitlines(keepends=True)))
    write(tmp_path / "other" / "data" / "mlm" / "dict.txt", backwards)
    launcher = RobertaLauncher()
    with pytest.raises(CheckpointError, match="entry 4 is 'w29', not 'w0'"):
        finetune(tmp_path / "other", launcher, system, task="qnli", **text)
    assert launcher.steps == ["prepare_mlm.sh"]


def test_a_task_without_a_split_of_its_score_is_refused_before_training(tmp_path):
    launcher = RobertaLauncher(splits=("valid",))
    with pytest.raises(UserError, match=r"RACE is scored on test, which .*race does not have"):
        finetune(tmp_path, launcher, task="race")
    assert launcher.steps == [*TEXT, "train donor", "race prepare"]


def test_a_longer_model_has_data_of_its_own(tmp_path):
    longer = RobertaRequest(
        RobertaExperiment(TINY), System("t5", options=("--max-positions", "256")), tmp_path
    )
    launcher = RobertaLauncher()
    FineTuning(longer, "race", launcher).run()
    FineTuning(asked(tmp_path), "race", launcher).run()
    of_steps = list(zip(launcher.steps, launcher.commands))
    prepared = [words for step, words in of_steps if step == "race prepare"]
    data = [str(tmp_path / "data" / name) for name in ("race-256", "race")]
    for words, folder, length in zip(prepared, data, ("256", "128")):
        assert folder in words and value(words, "--max-positions") == length
    assert len(prepared) == 2
    assert [words[3] for step, words in of_steps if step == "train seed-1"] == data


def test_a_wrong_option_costs_no_data(tmp_path):
    launcher, system = RobertaLauncher(), System("t5", target="qkv")
    request = RobertaRequest(RobertaExperiment(TINY), system, tmp_path)
    message = "refuses the options of flow: `--position-target` must be attention"
    with pytest.raises(UsageError, match=message):
        MaskedLmJob(request, launcher).run()
    with pytest.raises(UsageError, match=message):
        FineTuning(request, "squad2", launcher).run()
    config = tmp_path / "roberta_tiny.yaml"
    config.write_text(TINY.read_text().replace("dropout:", "drop-out:"))
    with pytest.raises(UsageError, match="refuses the options of donor: .*--drop-out"):
        finetune(tmp_path, launcher, PLAIN, config=config)
    assert not launcher.steps


def test_raw_files_are_asked_for_where_nothing_is_made(tmp_path):
    donor = tmp_path / "donor.pt"
    donor.touch()
    with pytest.raises(UsageError, match="rte needs raw files: pass the folder that holds glue/"):
        finetune(tmp_path / "w", RobertaLauncher(), PLAIN, config=BASE, donor=donor)
    text = ROOT / "configs" / "roberta_text.yaml"
    with pytest.raises(
        UsageError, match="is for your text: pass the folder that holds mlm/train.txt"
    ):
        finetune(tmp_path / "t", RobertaLauncher(), config=text, task="qnli")
    launcher = RobertaLauncher()
    with pytest.raises(UserError, match=r"There is no folder .*nowhere"):
        finetune(tmp_path / "t", launcher, config=text, task="qnli", raw=tmp_path / "nowhere")
    assert not launcher.steps
    finetune(tmp_path / "t", RobertaLauncher(), config=text, task="qnli", raw=tmp_path)
    assert "mlm-t5" in str(asked(tmp_path, "t5").stage_folder)
    # Once the data are made, raw files are not needed.
    finetune(tmp_path / "t", RobertaLauncher(), config=text, task="qnli", seed=2)


# The whole in miniature.


def miniature(path):
    """Write the stand-in's configuration with two tasks, cut down to seconds."""
    config = yaml.safe_load(TINY.read_text())
    config["data"].update({"quizzes": {"scale": 0.02}, "vocab": 120})
    config["shape"].update({"encoder-layers": 1, "encoder-embed-dim": 16})
    config["shape"]["encoder-ffn-embed-dim"] = 16
    config["budget"].update({"max-tokens": 600, "tokens-per-update": 600})
    saving = {"log-interval": 1, "save-interval-updates": 2, "keep-interval-updates": 1}
    config["masked-lm"].update(saving)
    config["finetune"]["all"].update({**saving, "batch": 8, "max-update": 6, "warmup-updates": 1})
    for stage in ("donor", "flow"):
        config["budget"][stage].update({"max-update": 6, "warmup-updates": 1})
    config["tasks"] = {name: config["tasks"][name] for name in ("rte", "squad2")}
    path.write_text(yaml.safe_dump(config))


@pytest.mark.slow
def test_killed_and_restarted_it_ends_in_the_same_table(tmp_path):
    """Four cells whole, and again with SIGKILL at random moments: the same numbers to the last digit."""
    config, tables = tmp_path / "roberta_mini.yaml", {}
    miniature(config)
    script = str(ROOT / "scripts" / "tables345.sh")
    for name, kills in (("whole", 0), ("killed", 8)):
        work = tmp_path / name
        command = ["bash", script, "--config", str(config), "--work", str(work)]
        command += ["--seeds", "1", "--processes", "0"]
        moments = random.Random(5)
        for _ in range(kills):
            killed(command, moments.uniform(3, 40))
        done = run(command, timeout=3000)
        assert "Table 3" in done.stdout and "Table 5" in done.stdout
        found = json.loads((work / "tables345.json").read_text())
        bits = [(s["before"]["all"], s["after"]["all"]) for s in found["masked_lm"]]
        assert len(bits) == 1
        tables[name] = found["tables_3_to_5"], bits
        assert sum(bool(c["seeds"]) for c in tables[name][0]) == 2 + 2 * 4
        assert run([*command, "--status"]).stdout.splitlines()[-1] == "5 done, 1 trained"
    assert tables["killed"] == tables["whole"]
