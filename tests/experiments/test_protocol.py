"""The order of a run's steps, what is skipped, and what is left behind; nothing is trained."""

import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import yaml
from command_lines import value
from fake_launcher import CONFIG, FakeLauncher, run
from toy import ROOT

from fairseq_floater.errors import UserError
from fairseq_floater.experiments import job, locks
from fairseq_floater.experiments.launch import BusyError, CommandError, StoppedError
from fairseq_floater.experiments.locks import try_lock
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System
from fairseq_floater.experiments.variants import TOLD

DATA = ["numbers", "prepare"]
AFTER = ["average", "generate test", "score", "generate test1", "score"]


def test_the_steps_of_each_kind_of_system(tmp_path):
    steps = run(tmp_path, "floater")
    training = ["train plain", "warm-start", "validate", "train floater-all-qkv"]
    assert steps == [*DATA, *training, *AFTER]
    # The donor exists by now.
    assert run(tmp_path, "plain") == [*DATA, *AFTER]
    scratch = run(tmp_path / "other", "none", scratch=True)
    assert scratch == [*DATA, "train none-all-hidden-scratch", *AFTER]
    plain = run(tmp_path / "plain", "plain", scratch=True)
    assert plain == [*DATA, "train plain-scratch", *AFTER]


def test_the_warm_start_is_translated_too_where_that_is_asked(tmp_path):
    config = tmp_path / "before.yaml"
    s2l = "threshold: 9, edges: [9], max-per-bin: 9, systems: [--encoder rope], before: true"
    config.write_text(f"{CONFIG.read_text()}\ns2l: {{{s2l}}}\n")
    with pytest.raises(UserError, match=r"splits its text by length: scripts/s2l\.sh does that"):
        run(tmp_path, "rope", config=config)
    data = tmp_path / "data"
    (data / "bin").mkdir(parents=True)
    (data / "summary.json").write_text("{}")
    (data / "tests.json").write_text('{"test": "test", "test_long": "test1"}')
    asked = {"config": config, "losses": True, "data": data}
    steps = run(tmp_path, "rope", **asked)
    translations = [
        f"{kind} {test}" for test in ("test", "test1") for kind in ("losses", "generate")
    ]
    start = ["train plain", "warm-start", "validate", *translations, "train rope-all-attention"]
    assert steps[: len(start)] == start
    names = {path.name for path in (tmp_path / "rope-all-attention").glob("*.before.txt")}
    assert names == {
        f"{k}.{t}.before.txt" for k in ("losses", "generate") for t in ("test", "test_long")
    }
    assert run(tmp_path, "rope", **asked) == []
    record = RunFolder(tmp_path / "rope-all-attention").read()
    assert str(config) in record["command"] and "--losses" in record["command"]
    # A donor has no warm start, nor has a run from random parameters.
    assert "warm-start" not in run(tmp_path, "plain", **asked)


def test_a_run_belongs_to_its_donor(tmp_path):
    run(tmp_path, "floater")
    assert run(tmp_path, "floater") == DATA
    (tmp_path / "plain" / "checkpoints" / "checkpoint_best.pt").write_bytes(b"another")
    with pytest.raises(UserError, match="was not started from .* as it is now"):
        run(tmp_path, "floater")
    shutil.rmtree(tmp_path / "plain")
    assert run(tmp_path, "floater") == DATA
    launcher = FakeLauncher()
    launcher.dry_run = True
    run(tmp_path, "rope", launcher)
    training = ["train plain", "warm-start", "validate", "train rope-all-attention"]
    assert launcher.steps == [*DATA, *training, *AFTER]
    assert not (tmp_path / "rope-all-attention").exists()


def test_a_dry_run_numbers_the_test_sets_of_the_text(tmp_path):
    config, launcher, raw = tmp_path / "long.yaml", FakeLauncher(), tmp_path / "raw"
    config.write_text(f"extends: {ROOT}/configs/text_tiny.yaml\ndata: {{tests: [test_long]}}")
    raw.mkdir()
    for name in ("train", "valid", "test", "test_long"):
        (raw / f"{name}.en").write_text("1\n")
    launcher.dry_run = True
    run(tmp_path, "rope", launcher, config=config, raw=raw, scratch=True)
    assert [step for step in launcher.steps if "generate" in step] == ["generate test1"]


def test_a_tokenizer_of_the_configuration_is_scored_with(tmp_path):
    config, launcher = tmp_path / "other.yaml", FakeLauncher()
    text = CONFIG.read_text()
    config.write_text(text.replace("  vocab: 300", "  tokenize: char\n  vocab: 300"))
    run(tmp_path, "floater", launcher, config=config)
    scored = [words for words in launcher.commands if "score" in words]
    assert len(scored) == 2
    assert all(value(words, "--tokenize") == "char" for words in scored)
    # Translations that were scored with another tokenizer are scored again, once.
    assert run(tmp_path, "floater") == [*DATA, "score", "score"]
    assert run(tmp_path, "floater") == DATA
    config.write_text(text.replace("  vocab: 300", "  tokenize: words\n  vocab: 300"))
    with pytest.raises(UserError, match="`tokenize` must be one of"):
        run(tmp_path / "new", "floater", launcher, config=config)


def test_a_stop_while_a_whole_run_is_looked_at_leaves_it_whole(tmp_path):
    run(tmp_path, "floater")
    launcher = FakeLauncher()
    launcher.stopped = True

    def stop(words, **places):
        raise StoppedError

    launcher.run = stop
    with pytest.raises(StoppedError):
        run(tmp_path, "floater", launcher)
    assert RunFolder(tmp_path / "floater-all-qkv").read()["state"] == "done"


def test_a_failure_of_a_decoding_variant_leaves_a_finished_run_finished(tmp_path):
    class Full(FakeLauncher):
        def run(self, words, **places):
            if "translation_told_length" in words:
                raise CommandError("out of memory")
            super().run(words, **places)

    for _ in range(2):
        with pytest.raises(CommandError, match="out of memory"):
            run(tmp_path, "floater", Full(), variants=(TOLD,))
        record = RunFolder(tmp_path / "floater-all-qkv").read()
        assert record["state"] == "done" and "reason" not in record
    assert (tmp_path / "floater-all-qkv" / "scores.test_long.json").is_file()


def test_a_second_run_skips_what_is_whole(tmp_path):
    run(tmp_path, "floater")
    assert run(tmp_path, "floater") == DATA
    # A removed file is made again, with what is made of it.
    made = {"scores.test_long.json": 1, "generate.test_long.txt": 2, "average.json": 5}
    for name, steps in made.items():
        (tmp_path / "floater-all-qkv" / name).unlink()
        assert run(tmp_path, "floater") == [*DATA, *AFTER[-steps:]]
    losses = ["losses test", "losses test1"]
    assert run(tmp_path, "floater", losses=True) == [*DATA, *losses]


def test_a_finished_run_trains_further_once_its_results_are_removed(tmp_path):
    config, folder = tmp_path / "longer.yaml", tmp_path / "floater-all-qkv"
    config.write_text(f"extends: {CONFIG}\n")
    run(tmp_path, "floater", config=config)
    begun = RunFolder(folder).read()["arguments"]["finetune"]
    epochs = int(value(begun, "--max-epoch"))
    config.write_text(f"extends: {CONFIG}\nbudget: {{finetune: {{max-epoch: {epochs + 1}}}}}\n")
    with pytest.raises(UserError, match=r"to train further, remove average\.json, generate"):
        run(tmp_path, "floater", config=config)
    results = ("average.json", "generate.*", "scores.*")
    for path in [path for name in results for path in folder.glob(name)]:
        path.unlink()
    assert "state" not in RunFolder(folder).read()
    with pytest.raises(CommandError):
        run(tmp_path, "floater", FakeLauncher(fails="train floater-all-qkv"), config=config)
    record = RunFolder(folder).read()
    assert "trained" not in record and record["state"] == "failed"
    assert run(tmp_path, "floater", config=config) == [*DATA, "train floater-all-qkv", *AFTER]
    assert run(tmp_path, "floater", config=config) == DATA
    record = RunFolder(folder).read()
    assert value(record["arguments"]["finetune"], "--max-epoch") == str(epochs + 1)
    # Other runs start from the donor.
    config.write_text(f"extends: {CONFIG}\nbudget: {{donor: {{max-epoch: {epochs + 9}}}}}\n")
    (folder / "warm_start.json").unlink()
    with pytest.raises(UserError, match=r"plain was started with .* and is \d+ now\. Set back"):
        run(tmp_path, "floater", config=config)


def test_the_record_says_what_was_run(tmp_path):
    run(tmp_path, "floater")
    record = RunFolder(tmp_path / "floater-all-qkv").read()
    assert set(record["arguments"]) == {"finetune", "generate"}
    assert record["settings"]["name"] == "floater-all-qkv"
    assert record["tokens"] == {"finetune": "1250"}
    assert record["trained"] and record["state"] == "done"
    donor = RunFolder(tmp_path / "plain").read()
    assert donor["trained"] and not donor["settings"] and "state" not in donor


def test_a_failure_is_in_the_record_until_the_next_run(tmp_path):
    with pytest.raises(CommandError):
        run(tmp_path, "floater", FakeLauncher(fails="train floater-all-qkv"))
    folder = RunFolder(tmp_path / "floater-all-qkv")
    record = folder.read()
    assert record["state"] == "failed"
    assert "the command failed; see the end of" in record["reason"]
    assert "trained" not in record
    assert run(tmp_path, "floater")[2:] == ["train floater-all-qkv", *AFTER]
    record = folder.read()
    assert record["state"] == "done" and "reason" not in record


def test_a_failure_after_an_earlier_stop_is_a_failure(tmp_path):
    checkpoints = tmp_path / "plain" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "stopped").touch()
    with pytest.raises(CommandError):
        run(tmp_path, "floater", FakeLauncher(fails="train plain"))


def test_references_that_the_output_limit_cuts_off_are_warned_of(tmp_path, capsys):
    launcher = FakeLauncher()
    folder = tmp_path / "data" / "spm"
    folder.mkdir(parents=True)
    for language, line in (("en", "one two"), ("de", "eins " * 200)):
        (folder / f"test.{language}").write_text(f"{line}\n")
    run(tmp_path, "floater", launcher)
    assert "1 of 1 references of test are longer than the longest hyp" in capsys.readouterr().err


def test_sentences_that_fairseq_would_not_load_stop_a_run_before_its_training(tmp_path):
    folder = tmp_path / "data" / "spm"
    folder.mkdir(parents=True)
    for language in ("en", "de"):
        (folder / f"test.{language}").write_text("one\n" + "word " * 1024 + "\n")
    launcher = FakeLauncher()
    rule = r"`max-source-positions` must be at least 1025 for line 2 of .*test\.en and its end"
    with pytest.raises(UserError, match=rule):
        run(tmp_path, "floater", launcher)
    assert launcher.steps == DATA
    config = tmp_path / "longer.yaml"
    limits = {"max-source-positions": 1025, "max-target-positions": 1025}
    config.write_text(yaml.safe_dump({"extends": str(CONFIG), "shape": limits}))
    assert run(tmp_path, "floater", config=config, losses=True)[-len(AFTER) :]
    arguments = RunFolder(tmp_path / "floater-all-qkv").read()["arguments"]
    for stage in ("finetune", "score-reference", "generate"):
        assert [value(arguments[stage], f"--{name}") for name in limits] == ["1025", "1025"]
    given = System("rope", options=("--max-source-positions=2000",))
    arguments = Experiment(config).arguments("generate", given)
    assert value(arguments, "--max-source-positions") == "2000"


def test_another_run_at_work_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_LOCK_WAIT", 0.2)
    (tmp_path / "floater-all-qkv").mkdir(parents=True)
    lock = try_lock(tmp_path / "floater-all-qkv" / ".lock")
    launcher = FakeLauncher()
    with pytest.raises(BusyError) as error:
        run(tmp_path, "floater", launcher)
    assert error.value.code == 75
    assert launcher.steps == []
    os.close(lock)
    run(tmp_path, "floater", launcher)
    assert len(launcher.locks) == 1  # the run's own lock, which its commands hold as well


def test_who_waits_for_a_donor_can_be_told_to_stop(tmp_path):
    lock = try_lock(tmp_path / ".donor.lock")

    class Waiting(FakeLauncher):
        def check_stopped(self, seconds=0):
            self._stop(signal.SIGTERM, None)
            super().check_stopped(seconds)

    launcher = Waiting()
    with pytest.raises(StoppedError):
        run(tmp_path, "floater", launcher)
    assert "state" not in RunFolder(tmp_path / "floater-all-qkv").read()
    os.close(lock)


def test_waiting_for_what_another_run_makes_is_not_time_of_this_run(tmp_path, monkeypatch):
    lock = try_lock(tmp_path / ".data.lock")

    class Waiting(FakeLauncher):
        now = 0

        def check_stopped(self, seconds=0):
            if seconds and not self.now:
                self.now = 100
                os.close(lock)

    launcher = Waiting()
    for module in (job, locks):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: launcher.now))
    run(tmp_path, "rope", launcher, scratch=True)
    [session] = RunFolder(tmp_path / "rope-all-attention-scratch").read()["sessions"]
    assert launcher.now > 0 and session["seconds"] == 0


def test_a_training_that_saved_and_stopped_is_not_trained(tmp_path):
    class Stopping(FakeLauncher):
        def run(self, words, **places):
            super().run(words, **places)
            if self.steps[-1].startswith("train"):
                (tmp_path / "plain" / "checkpoints" / "stopped").touch()

    with pytest.raises(StoppedError):
        run(tmp_path, "floater", Stopping())
    assert "trained" not in RunFolder(tmp_path / "plain").read()
