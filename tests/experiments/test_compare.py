"""scripts/compare.sh: systems of the registry, runs that others are at work on, the time left."""

import argparse
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from command_lines import value
from fake_launcher import FakeLauncher, Laboratory
from number_systems import CONFIG, CONTROL, ROPE, SINUSOID, T5
from toy import ROOT

from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.experiments import job, tables
from fairseq_floater.experiments.cells import Cell, seconds_left, select
from fairseq_floater.experiments.compare import ComparisonTable
from fairseq_floater.experiments.compare import run as run_comparison
from fairseq_floater.experiments.compare_options import add_options
from fairseq_floater.experiments.locks import try_lock
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System
from fairseq_floater.experiments.variants import Variant

WHOLE = ROOT / "configs" / "numbers_en_de.yaml"


def parsed(argv, by_length=False):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return argparse.Namespace(**vars(parser.parse_args(argv)), by_length=by_length)


# Runs.


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Run a comparison of the sinusoid, T5 and RoPE; return its launcher."""

    def run(*words, launcher=None, config=CONFIG, encoders="t5,rope"):
        launcher = launcher or Laboratory()
        monkeypatch.setattr(tables, "Launcher", lambda **options: launcher)
        more = ("--work", str(tmp_path / "w"), "--processes", "0", "--jobs", "1")
        run_comparison(parsed([str(config), *more, "--encoders", encoders, *words]))
        return launcher

    return run


def scored(launcher):
    """Return (system, seed) of each run in the table."""
    words = launcher.scored
    files = [words[i + 1] for i, word in enumerate(words) if word == "--hypotheses"]
    return [(file.split("=")[0], int(file.split("/seed-")[1][0])) for file in files]


def test_each_system_runs_under_each_seed_and_a_second_time_nothing_does(compare, tmp_path, capsys):
    launcher = compare("--seeds", "1,2")
    trained = [step for step in launcher.steps if step.startswith("train")]
    assert trained == [f"train {name}" for _ in "12" for name in (SINUSOID, T5, ROPE)]
    assert launcher.steps[:3] == ["numbers", "s2l", "prepare"]
    assert scored(launcher) == [(name, seed) for name in (SINUSOID, T5, ROPE) for seed in (1, 2)]
    assert value(launcher.scored, "--baseline") == SINUSOID
    assert "Longest training source: 23 tokens" in capsys.readouterr().out
    assert compare("--seeds", "1,2").steps == ["numbers", "s2l", "prepare", "s2l"]


def test_a_trained_model_translates_in_further_variants_if_its_encoder_takes_them(
    compare, monkeypatch, capsys
):
    monkeypatch.setattr("fairseq_floater.experiments.compare._RESAMPLES_A_SYSTEM", 500)
    compare()
    twice = ("--told-length", "--windows", "20:5") * 2
    launcher = compare("--eval", "cap:20,ntk:23", *twice)
    assert not any(step.startswith("train") for step in launcher.steps)
    words = launcher.scored
    labels = [words[i + 1] for i, word in enumerate(words) if word == "--label"]
    assert value(words, "--bootstrap") == str(500 * len(labels))  # each is compared
    marks = {SINUSOID: [], T5: ["cap_20"], ROPE: ["cap_20", "ntk_23"]}
    variants = [(s, mark) for s in marks for mark in (*marks[s], "told_length", "windows_20_5")]
    assert [label.split("=")[0] for label in labels if "." in label.split("=")[0]] == [
        f"{system}.{mark}" for system, mark in variants
    ]
    commands = [" ".join(c) for c in launcher.commands if "fairseq_cli.generate" in c]
    assert (
        sum("{'position_eval': 'cap:20'}" in c for c in commands) == 2 * 2 * 2
    )  # two systems, two test sets, losses and translations
    windows = "--task translation_windows --window 20 --window-overlap 5"
    for task in ("--task translation_told_length", windows):
        assert sum(task in c for c in commands) == 3 * 2
    with_losses = {words[i + 1].split("=")[0] for i, word in enumerate(words) if word == "--losses"}
    assert f"{ROPE}.cap_20" in with_losses
    assert not any("told_length" in name or "windows" in name for name in with_losses)
    words = compare("--eval", "cap:10", "--only", "rope-*").scored
    translated = {word.split("=")[0] for word in words if ".cap_10=" in word}
    assert translated == {f"{ROPE}.cap_10"}
    variant, gap = Variant("logn:5", (), "logn:5"), ("--floater-gap", "1.0")
    rope, with_gap = System("rope", scratch=True), System("floater", scratch=True, options=gap)
    assert variant.suits(with_gap, "<s2>") and not variant.suits(with_gap)
    assert replace(variant, spec="ntk:5").suits(rope, "<s2>")
    with pytest.raises(UsageError, match="No system takes `--eval yarn:23`"):
        compare("--eval", "yarn:23", encoders="t5")
    for law, message in (
        ("cap", "must be none or one of interpolate:T"),
        ("none", "must change something, but is none"),
    ):
        with pytest.raises(SystemExit):
            compare("--eval", law)
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare("--windows", "20:20")
    assert "must be T or T:O, O below T" in capsys.readouterr().err


def test_what_fails_or_is_busy_stops_no_other(compare, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(job, "_LOCK_WAIT", 0)
    busy = tmp_path / "w" / "seed-1" / SINUSOID
    busy.mkdir(parents=True)
    lock = try_lock(busy / ".lock")
    launcher = Laboratory(fails=f"train {T5}")
    with pytest.raises(
        UserError,
        match=rf"Failed: {T5} seed 1 \(the same command with --status says why\)\. {T5} seed 1: {T5}, .",
    ):
        compare(launcher=launcher)
    assert scored(launcher) == [(ROPE, 1)]
    assert "--baseline" not in launcher.scored
    skipped = f"Skipped, because other processes are running them: {SINUSOID} seed 1"
    assert skipped in capsys.readouterr().err
    compare("--status")
    status = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in status[:3]] == ["running", "failed", "done"]
    assert status[4] == "1 done, 1 failed, 1 running"
    os.close(lock)

    def refuse(*_):
        raise UserError("A file is missing.")

    monkeypatch.setattr(launcher, "show", refuse)
    with pytest.raises(UserError, match=rf"Failed: {T5} seed 1 .* A file is missing\."):
        compare(launcher=launcher)


@pytest.mark.parametrize("tokens", [1250, 10_000])  # an update fits one GPU, or eight
def test_runs_side_by_side_take_gpus_of_their_own(tmp_path, monkeypatch, tokens):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    config = tmp_path / "config.yaml"
    config.write_text(f"extends: {CONFIG}\nbudget: {{tokens-per-update: {tokens}}}\n")
    chosen = []
    monkeypatch.setattr(
        tables, "Launcher", lambda **options: chosen.extend(options["job_environments"])
    )
    ComparisonTable(parsed([str(config), "--work", str(tmp_path), "--jobs", "3"]))
    assert [job["CUDA_VISIBLE_DEVICES"] for job in chosen] == ["4", "5", "6"]


def test_a_wrong_option_of_one_system_stops_all_at_once(compare):
    launcher = FakeLauncher()
    with pytest.raises(UserError, match="unrecognized arguments: --nonsense 3"):
        compare("--also=--nonsense 3", launcher=launcher)
    assert not launcher.steps


def test_the_table_has_what_was_not_chosen_too(compare, tmp_path):
    compare("--only", "rope-*")
    launcher = compare("--only", "t5-*")
    assert [step for step in launcher.steps if step.startswith("train")] == [f"train {T5}"]
    assert scored(launcher) == [(T5, 1), (ROPE, 1)]


def test_systems_may_be_scored_under_different_seeds(compare):
    compare("--seeds", "1,2", "--only", "rope-*,t5-*")
    launcher = compare("--seeds", "2,3", "--only", "t5-*")
    assert scored(launcher) == [(T5, 2), (T5, 3), (ROPE, 2)]


def test_nothing_whole_is_no_table(compare, capsys):
    with pytest.raises(UserError):
        compare("--only", "t5-*", launcher=Laboratory(fails=f"train {T5}"))
    assert "No run is finished yet: no table." in capsys.readouterr().err


def test_a_run_records_the_command_that_makes_it_alone(compare, tmp_path, capsys):
    compare("--only", "t5-*")
    record = RunFolder(tmp_path / "w" / "seed-1" / T5).read()
    (session,) = record["sessions"]
    machine = {"host", "processor", "cores", "threads", "commit", "code", "versions"}
    assert {"begun", "seconds", *machine} == set(session)
    assert session["threads"] == os.environ.get("OMP_NUM_THREADS")
    words = shlex.split(record["command"])
    place = words.index("bash") + 2
    assert words[0] == "env" and words[place - 1] == str(ROOT / "scripts" / "protocol.sh")
    own, model = words[place : words.index("--")], words[words.index("--") + 1 :]
    capsys.readouterr()
    assert main(["run", *own, f"--model-options={' '.join(model)}", "--dry-run"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    (training,) = (line for line in lines if "fairseq_cli.train" in line)
    assert training[3:] == record["arguments"]["scratch"]
    into = [line[-1] for line in lines if line[-2] == ">"]
    names = ("losses.test", "generate.test", "losses.test_short", "generate.test_short")
    assert into == [str(tmp_path / "w" / "seed-1" / T5 / f"{name}.txt") for name in names]


# Time left.


def test_the_time_left_is_that_of_runs_that_are_done(tmp_path):
    cells = [Cell(name, tmp_path / name / str(seed), None) for name in "ab" for seed in (1, 2)]
    assert seconds_left(cells) is None

    def change(name, seed, **entries):
        folder = tmp_path / name / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        with RunFolder(folder).changing() as record:
            record |= entries
        return folder

    change("a", 1, state="done", sessions=[{"seconds": 60}, {"seconds": 40}])
    assert seconds_left(cells) == 300
    change("b", 1, state="done", sessions=[{"seconds": 20}])
    assert seconds_left(cells) == 100 + 20
    # 20 of 3 x 10 updates are done: a third is left.
    folder = change("a", 2, arguments={"scratch": ["bin", "--max-epoch", "3"]}, state="failed")
    line = "x | INFO | train_inner | epoch 002:  10 / 10 loss=1, num_updates=20, lr=1\n"
    (folder / "train.log").write_text(line)
    assert seconds_left(cells) == pytest.approx(100 / 3 + 20)
    change("a", 2, trained=True)
    assert seconds_left(cells) == 20


def test_the_names_of_systems_are_listed(capsys):
    run_comparison(parsed([str(CONFIG), "--list", "--seeds", "1,2"]))
    systems = Experiment(CONFIG).s2l.listed()
    assert capsys.readouterr().out.splitlines() == [entry.system.name for entry in systems]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--seeds", "1,1"], "must be different numbers"),
        (["--start", "donor"], "`--start` needs `--encoders`"),
    ],
)
def test_what_would_mean_nothing_is_refused(words, message, tmp_path, capsys):
    with pytest.raises((UsageError, SystemExit)) as refused:
        run_comparison(parsed([str(CONFIG), "--work", str(tmp_path), "--list", *words]))
    assert message in str(refused.value) + capsys.readouterr().err


def test_one_donor_for_all_seeds_is_no_system_with_seeds(tmp_path):
    config = tmp_path / "plain.yaml"
    text = WHOLE.read_text().replace("    - --encoder floater\n", "    - --encoder plain\n", 1)
    config.write_text(text)
    with pytest.raises(UsageError, match="`--encoder plain` has one run, not one for each seed"):
        run_comparison(parsed([str(config), "--donor", "somewhere", "--seeds", "1,2"]))


def test_a_look_is_at_every_seed_that_is_there(tmp_path, capsys):
    for seed in (1, 3):
        (tmp_path / f"seed-{seed}" / SINUSOID).mkdir(parents=True)
    words = [str(CONFIG), "--work", str(tmp_path), "--status", "--only", SINUSOID]
    run_comparison(parsed(words))
    out = capsys.readouterr().out
    assert f"{SINUSOID} seed 1" in out and f"{SINUSOID} seed 3" in out and "seed 2" not in out


# Whole test sets: a configuration that does not split its text.


def test_without_a_split_whole_test_sets_are_compared(compare, tmp_path, capsys):
    words = ("--seeds", "1,2", "--donor", str(tmp_path / "plain"))
    launcher = compare(*words, config=WHOLE, encoders="rope")
    assert "`--start scratch` trains all" in capsys.readouterr().err
    trained = [step for step in launcher.steps if step.startswith("train")]
    # One donor for all, and the encoder starts from it as the baseline does.
    assert trained == ["train plain", *[f"train {n}" for n in (CONTROL, "rope-all-attention")] * 2]
    assert launcher.steps[:2] == ["numbers", "prepare"] and launcher.steps[-1] == "compare"
    scored = launcher.scored
    assert scored[scored.index("--tests") + 1 :][:2] == ["test", "test_long"]
    assert value(scored, "--baseline") == CONTROL
    told = compare(*words, "--told-length", config=WHOLE, encoders="rope")
    assert not any(step.startswith("train") for step in told.steps)
    for ran, marks in ((launcher, [""]), (told, ["", ".told_length"])):
        words = ran.scored
        assert [words[i + 1] for i, word in enumerate(words) if word == "--run"] == [
            f"{name}{mark}={tmp_path}/w/seed-{seed}/{name}"
            for name in (CONTROL, "rope-all-attention")
            for mark in marks
            for seed in (1, 2)
        ]


def test_chosen_systems_come_in_the_order_of_the_patterns():
    cells = [Cell(name, Path(name), None, seed) for seed in (2, 1) for name in ("a", "b", "c")]
    chosen = select(cells, "c, a")
    assert [(cell.seed, cell.name) for cell in chosen] == [(2, "c"), (2, "a"), (1, "c"), (1, "a")]
