"""What a run refuses before it trains, or before it makes data."""

import re

import pytest
from fake_launcher import CONFIG, FakeLauncher, run
from toy import ROOT

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.launch import CommandError
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import Protocol
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System, system_from_words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--encoder rope --target qkv", "`--position-target` must be attention with"),
        ("--encoder rope -- --rope-base -3", "`--rope-base` must be more than 1, but is -3.0"),
        (
            "--encoder t5 -- --rope-base 500",
            "no effect with `--encoder t5`: it is an option of rope,",
        ),
        ("--encoder sinusoidal -- --position-stretch 0.5:2", "must come with `--no-token-pos"),
        ("--encoder rope -- --encoder-layers many", "encoder-layers: invalid int value: 'many'"),
        ("--encoder floater --blocks 2", "must name blocks from 0 to 1"),
        ("--encoder rope -- --nonsense 3", "unrecognized arguments: --nonsense 3"),
        ("--encoder rope -- --lr 0.01", "A warm start takes only options of the model"),
        ("--encoder rope -- --encoder-layers 3", "`--encoder-layers` cannot be given to a warm"),
    ],
)
def test_a_wrong_option_of_the_model_costs_no_donor(tmp_path, words, message):
    request = RunRequest(Experiment(CONFIG), system_from_words(words), tmp_path)
    launcher = FakeLauncher()
    for launcher.dry_run in (False, True):
        with pytest.raises(UserError, match=re.escape(message)):
            Protocol(request, launcher).run()
    assert not launcher.steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("finetune: {max-epoch: 2,", "finetune: {max-epoch: 1,"), "max-epoch` of finetune"),
        (("keep-last-epochs: 5", "keep-last-epochs: 1"), "keep-last-epochs` of finetune"),
    ],
)
def test_fewer_epochs_than_are_averaged_cost_no_training(tmp_path, change, message):
    config, launcher = tmp_path / "few.yaml", FakeLauncher()
    text = CONFIG.read_text()
    assert change[0] in text
    config.write_text(text.replace(*change))
    message += " must be at least 2 for `budget: average`, 2, but is 1."
    with pytest.raises(UserError, match=re.escape(message)):
        run(tmp_path, "floater", launcher, config=config)
    assert not launcher.steps


UPDATES = "finetune: {average-of: updates, keep-interval-updates: 3, save-interval-updates: 9"


def test_an_average_of_updates_needs_one_epoch(tmp_path):
    config = tmp_path / "updates.yaml"
    change = ("finetune: {max-epoch: 2", f"{UPDATES}, max-epoch: 1")
    config.write_text(CONFIG.read_text().replace(*change))
    assert "average" in run(tmp_path, "floater", config=config)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (f"{UPDATES}, max-update: 20", "`max-update` of finetune must be a multiple of .* 9, but is 20"),
        (f"{UPDATES}, max-update: 9", "`max-update` of finetune must be at least 18"),
        (f"{UPDATES}, max-update: 18".replace("3", "1"), "`keep-interval-updates` of finetune must"),
        ("finetune: {average-of: updates, max-update: 18", "`save-interval-updates`, which is not"),
        ("finetune: {max-update: 18", "`max-update` of finetune needs `average-of: updates`"),
        ("finetune: {save-interval: 2", "`save-interval` of finetune needs `average-of: updates`"),
        (f"{UPDATES}, max-update: '1,8'", "max-update.*1,8"),
    ],
)  # fmt: skip
def test_updates_that_cannot_be_averaged_cost_no_training(tmp_path, section, message):
    config, launcher = tmp_path / "updates.yaml", FakeLauncher()
    config.write_text(CONFIG.read_text().replace("finetune: {max-epoch: 2", section))
    with pytest.raises(UserError, match=message):
        run(tmp_path, "floater", launcher, config=config)
    assert not launcher.steps


def test_a_test_set_that_the_text_lacks_costs_no_data(tmp_path):
    launcher, raw = FakeLauncher(), tmp_path / "raw"
    raw.mkdir()
    for name in ("test.en", "train.en", "train.de", "valid.en", "valid.de"):
        (raw / name).write_text("x\n")
    text = ROOT / "configs" / "text_tiny.yaml"
    with pytest.raises(UserError, match=r"raw/test\.de is missing \(so is test\.de\.gz\)"):
        run(tmp_path, "rope", launcher, config=text, raw=raw)
    assert not launcher.steps
    (raw / "test.de").write_text("x\n")
    run(tmp_path, "rope", launcher, config=text, raw=raw)
    assert launcher.steps[0] == "prepare"


def test_data_that_cannot_be_made_anew_say_which_folder_is_in_the_way(tmp_path, capsys):
    with pytest.raises(CommandError):
        run(tmp_path, "rope", FakeLauncher("prepare"))
    advice = f"have changed, use another --work or remove {tmp_path / 'data'}."
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message", "steps"),
    [
        (("donor: {max-epoch:", "donor: {max-epochs:"), "the options of donor: .*--max-epochs", []),
        (("donor: {max-epoch: 4}", "donor: {max-epoch: 0}"), "donor would never end: give it", []),
        (("donor: {", "donor: {help: true, "), "the options of donor: --help and --user-dir", []),
        (("max-len-a:", "max_len_a:"), "refuses the options of generation: .*max_len_a", []),
        (
            ("tests: [test, test_long]", "tests: [newstest]"),
            "has no test set newstest .*; it has test, test_long",
            ["numbers", "prepare"],
        ),
    ],
)
def test_what_a_configuration_has_wrong_costs_no_training(tmp_path, change, message, steps):
    config, launcher = tmp_path / "other.yaml", FakeLauncher()
    config.write_text(CONFIG.read_text().replace(*change))
    with pytest.raises(UserError, match=message):
        run(tmp_path, "floater", launcher, config=config)
    assert launcher.steps == steps


def test_what_is_refused_leaves_a_whole_run_whole(tmp_path):
    config = tmp_path / "other.yaml"
    config.write_text(CONFIG.read_text().replace("beam: 4", "beam: 5"))
    run(tmp_path, "floater")
    folder = RunFolder(tmp_path / "floater-all-qkv")
    before = folder.read()
    with pytest.raises(UserError, match="--beam was 4 and is 5 now"):
        run(tmp_path, "floater", config=config)
    assert folder.read() == before and before["state"] == "done"
    assert len(before["sessions"]) == 1


def test_the_donor_of_others_has_the_configurations_seed(tmp_path):
    with pytest.raises(
        UserError, match="`--seed` must be left out with `--donor` and `--encoder plain`"
    ):
        run(tmp_path, "plain", donor=tmp_path / "shared", seed=3)
    assert "train shared" in run(tmp_path, "plain", donor=tmp_path / "shared")
    with pytest.raises(UserError, match="`--no-base` is for systems that train from random"):
        System("plain", base=False)
    assert System("plain", scratch=True, base=False).name == "plain-scratch-nobase"


@pytest.mark.parametrize("given", ["", "checkpoint_best.pt"])
def test_a_checkpoint_of_fairseq_is_no_donor_of_the_scripts(tmp_path, given):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "checkpoint_best.pt").touch()
    with pytest.raises(UserError, match="start from those with `floater warm-start`"):
        run(tmp_path, "rope", donor=tmp_path / "mine" / given)


def test_a_run_with_an_encoder_is_no_donor(tmp_path):
    run(tmp_path, "rope")
    name = System("rope").name
    with pytest.raises(UserError, match=r"run of `--encoder plain`, but .* is one of rope\."):
        run(tmp_path, "floater", donor=tmp_path / name)
