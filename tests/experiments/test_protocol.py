"""The order of a run's steps, what is skipped, and what is left behind; nothing is trained."""

import os
import re
import shutil
import signal

import pytest
from command_lines import value
from fake_launcher import FakeLauncher
from toy import ROOT

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.launch import BusyError, CommandError, StoppedError
from fairseq_floater.experiments.locks import try_lock
from fairseq_floater.experiments.looks import TOLD
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import Protocol
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System, system_from_words

CONFIG = ROOT / "configs" / "numbers_en_de.yaml"


def run(work, launcher, encoder, *, scratch=False, config=CONFIG, **asked):
    system = System(encoder, scratch=scratch)
    Protocol(RunRequest(Experiment(config), system, work, **asked), launcher).run()
    return launcher.steps


DATA = ["numbers", "prepare"]
AFTER = ["average", "generate test", "score", "generate test1", "score"]


def test_the_steps_of_each_kind_of_system(tmp_path):
    steps = run(tmp_path, FakeLauncher(), "floater")
    training = ["train plain", "warm-start", "validate", "train floater-all-qkv"]
    assert steps == [*DATA, *training, *AFTER]
    # The donor exists by now.
    assert run(tmp_path, FakeLauncher(), "plain") == [*DATA, *AFTER]
    scratch = run(tmp_path / "other", FakeLauncher(), "none", scratch=True)
    assert scratch == [*DATA, "train none-all-hidden-scratch", *AFTER]
    plain = run(tmp_path / "plain", FakeLauncher(), "plain", scratch=True)
    assert plain == [*DATA, "train plain-scratch", *AFTER]


def test_the_warm_start_is_translated_too_where_that_is_asked(tmp_path):
    config = tmp_path / "before.yaml"
    s2l = "threshold: 9, edges: [9], max-per-bin: 9, systems: [--encoder rope], before: true"
    config.write_text(f"{CONFIG.read_text()}\ns2l: {{{s2l}}}\n")
    with pytest.raises(UserError, match=r"splits its text by length: scripts/s2l\.sh does that"):
        run(tmp_path, FakeLauncher(), "rope", config=config)
    data = tmp_path / "data"
    (data / "bin").mkdir(parents=True)
    (data / "summary.json").write_text("{}")
    (data / "tests.json").write_text('{"test": "test", "test_long": "test1"}')
    asked = {"config": config, "losses": True, "data": data}
    steps = run(tmp_path, FakeLauncher(), "rope", **asked)
    translations = [
        f"{kind} {test}" for test in ("test", "test1") for kind in ("losses", "generate")
    ]
    start = ["train plain", "warm-start", "validate", *translations, "train rope-all-attention"]
    assert steps[: len(start)] == start
    names = {path.name for path in (tmp_path / "rope-all-attention").glob("*.before.txt")}
    assert names == {
        f"{k}.{t}.before.txt" for k in ("losses", "generate") for t in ("test", "test_long")
    }
    assert run(tmp_path, FakeLauncher(), "rope", **asked) == []
    record = RunFolder(tmp_path / "rope-all-attention").read()
    assert str(config) in record["command"] and "--losses" in record["command"]
    # A donor has no warm start, nor has a run from random parameters.
    assert "warm-start" not in run(tmp_path, FakeLauncher(), "plain", **asked)


def test_a_run_belongs_to_its_donor(tmp_path):
    run(tmp_path, FakeLauncher(), "floater")
    assert run(tmp_path, FakeLauncher(), "floater") == DATA
    (tmp_path / "plain" / "checkpoints" / "checkpoint_best.pt").write_bytes(b"another")
    with pytest.raises(UserError, match="was started from another donor"):
        run(tmp_path, FakeLauncher(), "floater")
    shutil.rmtree(tmp_path / "plain")
    assert run(tmp_path, FakeLauncher(), "floater") == DATA
    launcher = FakeLauncher()
    launcher.dry_run = True
    run(tmp_path, launcher, "rope")
    training = ["train plain", "warm-start", "validate", "train rope-all-attention"]
    assert launcher.steps == [*DATA, *training, *AFTER]
    assert not (tmp_path / "rope-all-attention").exists()


@pytest.mark.parametrize("dry_run", [False, True])
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
def test_a_wrong_option_of_the_model_costs_no_donor(tmp_path, words, message, dry_run):
    launcher = FakeLauncher()
    launcher.dry_run = dry_run
    with pytest.raises(UserError, match=re.escape(message)):
        Protocol(RunRequest(Experiment(CONFIG), system_from_words(words), tmp_path), launcher).run()
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
        run(tmp_path, launcher, "floater", config=config)
    assert not launcher.steps
    # With an average of updates, one epoch is enough.
    limits = "finetune: {average-of: updates, keep-interval-updates: 3, save-interval-updates: 9, "
    config.write_text(text.replace("finetune: {max-epoch: 2,", f"{limits} max-epoch: 1,"))
    assert "average" in run(tmp_path, launcher, "floater", config=config)
    # The last update must be one that is saved.
    config.write_text(text.replace("finetune: {max-epoch: 2,", f"{limits} max-update: 20,"))
    with pytest.raises(
        UserError, match="`max-update` of finetune must be a multiple of .* 9, but is 20"
    ):
        run(tmp_path, FakeLauncher(), "floater", config=config)
    for section, message in (
        ("finetune: {average-of: updates, max-update: 18", "`save-interval-updates`, which is not"),
        (f"{limits} max-update: 9", "`max-update` of finetune must be at least 18"),
        (f"{limits} max-update: 18".replace("3", "1"), "`keep-interval-updates` of finetune must"),
    ):
        config.write_text(text.replace("finetune: {max-epoch: 2", section))
        with pytest.raises(UserError, match=message):
            run(tmp_path, FakeLauncher(), "floater", config=config)


def test_a_test_set_that_the_text_lacks_costs_no_data(tmp_path):
    launcher, raw = FakeLauncher(), tmp_path / "raw"
    raw.mkdir()
    for name in ("test.en", "train.en", "train.de", "valid.en", "valid.de"):
        (raw / name).write_text("x\n")
    text = ROOT / "configs" / "text_tiny.yaml"
    with pytest.raises(UserError, match=r"raw/test\.de is missing \(so is test\.de\.gz\)"):
        run(tmp_path, launcher, "rope", config=text, raw=raw)
    assert not launcher.steps
    (raw / "test.de").write_text("x\n")
    run(tmp_path, launcher, "rope", config=text, raw=raw)
    assert launcher.steps[0] == "prepare"


def test_data_that_cannot_be_made_anew_say_which_folder_is_in_the_way(tmp_path, capsys):
    with pytest.raises(CommandError):
        run(tmp_path, FakeLauncher("prepare"), "rope")
    advice = f"have changed, use another --work or remove {tmp_path / 'data'}."
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message", "steps"),
    [
        (("donor: {max-epoch:", "donor: {max-epochs:"), "the options of donor: .*--max-epochs", []),
        (("max-len-a:", "max_len_a:"), "refuses the options of generation: .*max_len_a", []),
        (
            ("tests: [test, test_long]", "tests: [newstest]"),
            "has no test set newstest .*; it has test, test_long",
            DATA,
        ),
    ],
)
def test_what_a_configuration_has_wrong_costs_no_training(tmp_path, change, message, steps):
    config, launcher = tmp_path / "other.yaml", FakeLauncher()
    config.write_text(CONFIG.read_text().replace(*change))
    with pytest.raises(UserError, match=message):
        run(tmp_path, launcher, "floater", config=config)
    assert launcher.steps == steps


def test_a_tokenizer_of_the_configuration_is_scored_with(tmp_path):
    config, launcher = tmp_path / "other.yaml", FakeLauncher()
    text = CONFIG.read_text()
    config.write_text(text.replace("  vocab: 300", "  tokenize: char\n  vocab: 300"))
    run(tmp_path, launcher, "floater", config=config)
    scored = [words for words in launcher.commands if "score" in words]
    assert len(scored) == 2
    assert all(value(words, "--tokenize") == "char" for words in scored)
    # Translations that were scored with another tokenizer are scored again, once.
    assert run(tmp_path, FakeLauncher(), "floater") == [*DATA, "score", "score"]
    assert run(tmp_path, FakeLauncher(), "floater") == DATA
    config.write_text(text.replace("  vocab: 300", "  tokenize: words\n  vocab: 300"))
    with pytest.raises(UserError, match="`tokenize` must be one of"):
        run(tmp_path / "new", launcher, "floater", config=config)


def test_what_is_refused_leaves_a_whole_run_whole(tmp_path):
    config = tmp_path / "other.yaml"
    config.write_text(CONFIG.read_text().replace("beam: 4", "beam: 5"))
    run(tmp_path, FakeLauncher(), "floater")
    folder = RunFolder(tmp_path / "floater-all-qkv")
    before = folder.read()
    with pytest.raises(UserError, match="--beam was 4 and is 5 now"):
        run(tmp_path, FakeLauncher(), "floater", config=config)
    assert folder.read() == before and before["state"] == "done"
    assert len(before["sessions"]) == 1


def test_a_stop_while_a_whole_run_is_looked_at_leaves_it_whole(tmp_path):
    run(tmp_path, FakeLauncher(), "floater")
    launcher = FakeLauncher()
    launcher.stopped = True

    def stop(words, **places):
        raise StoppedError

    launcher.run = stop
    with pytest.raises(StoppedError):
        run(tmp_path, launcher, "floater")
    assert RunFolder(tmp_path / "floater-all-qkv").read()["state"] == "done"


def test_a_failure_of_a_further_look_leaves_a_whole_run_whole(tmp_path):
    class Full(FakeLauncher):
        def run(self, words, **places):
            if "translation_told_length" in words:
                raise CommandError("out of memory")
            super().run(words, **places)

    for _ in range(2):
        with pytest.raises(CommandError, match="out of memory"):
            run(tmp_path, Full(), "floater", looks=(TOLD,))
        record = RunFolder(tmp_path / "floater-all-qkv").read()
        assert record["state"] == "done" and "reason" not in record
    assert (tmp_path / "floater-all-qkv" / "scores.test_long.json").is_file()


def test_the_donor_of_others_has_the_configurations_seed(tmp_path):
    with pytest.raises(UserError, match="`--encoder plain` is the donor of the others, with the"):
        run(tmp_path, FakeLauncher(), "plain", donor=tmp_path / "shared", seed=3)
    assert "train shared" in run(tmp_path, FakeLauncher(), "plain", donor=tmp_path / "shared")
    with pytest.raises(UserError, match="`--no-base` is for systems that train from random"):
        System("plain", base=False)
    assert System("plain", scratch=True, base=False).name == "plain-scratch-nobase"


@pytest.mark.parametrize("given", ["", "checkpoint_best.pt"])
def test_a_checkpoint_of_fairseq_is_no_donor_of_the_scripts(tmp_path, given):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "checkpoint_best.pt").touch()
    with pytest.raises(UserError, match="start from those with `floater warm-start`"):
        run(tmp_path, FakeLauncher(), "rope", donor=tmp_path / "mine" / given)


def test_a_second_run_skips_what_is_whole(tmp_path):
    run(tmp_path, FakeLauncher(), "floater")
    assert run(tmp_path, FakeLauncher(), "floater") == DATA
    (tmp_path / "floater-all-qkv" / "scores.test_long.json").unlink()
    assert run(tmp_path, FakeLauncher(), "floater") == [*DATA, "score"]
    losses = ["losses test", "losses test1"]
    assert run(tmp_path, FakeLauncher(), "floater", losses=True) == [*DATA, *losses]


def test_the_record_says_what_was_run(tmp_path):
    run(tmp_path, FakeLauncher(), "floater")
    record = RunFolder(tmp_path / "floater-all-qkv").read()
    assert set(record["arguments"]) == {"finetune", "generate"}
    assert record["settings"]["name"] == "floater-all-qkv"
    assert record["tokens"] == {"finetune": "1250"}
    assert record["trained"] and record["state"] == "done"
    donor = RunFolder(tmp_path / "plain").read()
    assert donor["trained"] and not donor["settings"] and "state" not in donor


def test_a_failure_is_in_the_record_until_the_next_run(tmp_path):
    with pytest.raises(CommandError):
        run(tmp_path, FakeLauncher(fails="train floater-all-qkv"), "floater")
    folder = RunFolder(tmp_path / "floater-all-qkv")
    record = folder.read()
    assert record["state"] == "failed"
    assert "the command failed; see the end of" in record["reason"]
    assert "trained" not in record
    assert run(tmp_path, FakeLauncher(), "floater")[2:] == ["train floater-all-qkv", *AFTER]
    record = folder.read()
    assert record["state"] == "done" and "reason" not in record


def test_a_failure_after_an_earlier_stop_is_a_failure(tmp_path):
    checkpoints = tmp_path / "plain" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "stopped").touch()
    with pytest.raises(CommandError):
        run(tmp_path, FakeLauncher(fails="train plain"), "floater")


def test_references_that_the_output_limit_cuts_off_are_warned_of(tmp_path, capsys):
    launcher = FakeLauncher()
    folder = tmp_path / "data" / "spm"
    folder.mkdir(parents=True)
    for language, line in (("en", "one two"), ("de", "eins " * 200)):
        (folder / f"test.{language}").write_text(f"{line}\n")
    run(tmp_path, launcher, "floater")
    assert "1 of 1 references of test are longer than `max-len-a" in capsys.readouterr().err


def test_another_run_at_work_is_left_alone(tmp_path):
    (tmp_path / "floater-all-qkv").mkdir(parents=True)
    lock = try_lock(tmp_path / "floater-all-qkv" / ".lock")
    launcher = FakeLauncher()
    with pytest.raises(BusyError) as error:
        run(tmp_path, launcher, "floater")
    assert error.value.code == 75
    assert launcher.steps == []
    os.close(lock)
    run(tmp_path, launcher, "floater")
    assert len(launcher.locks) == 1  # the run's own lock, which its commands hold as well


def test_who_waits_for_a_donor_can_be_told_to_stop(tmp_path):
    lock = try_lock(tmp_path / ".donor.lock")

    class Waiting(FakeLauncher):
        def check_stopped(self, seconds=0):
            self._stop(signal.SIGTERM, None)
            super().check_stopped(seconds)

    launcher = Waiting()
    with pytest.raises(StoppedError):
        run(tmp_path, launcher, "floater")
    assert "state" not in RunFolder(tmp_path / "floater-all-qkv").read()
    os.close(lock)


def test_a_training_that_saved_and_stopped_is_not_trained(tmp_path):
    class Stopping(FakeLauncher):
        def run(self, words, **places):
            super().run(words, **places)
            if self.steps[-1].startswith("train"):
                (tmp_path / "plain" / "checkpoints" / "stopped").touch()

    with pytest.raises(StoppedError):
        run(tmp_path, Stopping(), "floater")
    assert "trained" not in RunFolder(tmp_path / "plain").read()
