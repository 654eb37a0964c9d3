"""The record of a run: which changes a run may go on with, and which are refused."""

import json
from pathlib import Path

import pytest
import torch
from fake_launcher import run

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import ReportError
from fairseq_floater.experiments.locks import is_locked, try_lock
from fairseq_floater.experiments.run_folder import (
    RunFolder,
    check_data,
    origin,
    write_validation,
)


def save(folder, iterations):
    place = {"epoch": 3, "iterations_in_epoch": iterations}
    state = {"model": {"a": torch.zeros(1)}, "extra_state": {"train_iterator": place}}
    torch.save(state, folder / "checkpoints" / "checkpoint_last.pt")


@pytest.fixture
def stopped(tmp_path):
    """A run of two processes that was stopped within its third epoch."""
    (tmp_path / "checkpoints").mkdir()
    save(tmp_path, 7)
    folder = RunFolder(tmp_path)
    with folder.changing() as record:
        record["processes"] = 2
    return folder


def test_within_an_epoch_the_number_of_processes_stays(stopped):
    message = r"was saved within epoch 3 by 2 processes, not 1 process: continue with 2 processes"
    with pytest.raises(CheckpointError, match=message):
        stopped.resume("donor", [], 1)
    assert stopped.resume("donor", [], 2).startswith("resuming from ")
    (stopped.path / "checkpoints" / "checkpoint_last.pt").unlink()
    assert stopped.resume("donor", [], 4) == "nothing to resume from"


@pytest.mark.parametrize("name", ["--max-tokens", "--batch-size"])
def test_within_an_epoch_the_size_of_a_batch_stays(stopped, name):
    with stopped.changing() as record:
        record["arguments"]["donor"] = ["bin", name, "2000"]
    message = f"by 2 processes of {name} 2000, not 2 processes of {name} 1000: continue"
    with pytest.raises(CheckpointError, match=message):
        stopped.resume("donor", ["bin", name, "1000"], 2)
    assert stopped.resume("donor", ["bin", name, "2000"], 2).startswith("resuming from ")
    save(stopped.path, 0)
    assert stopped.resume("donor", ["bin", name, "1000"], 2).startswith("resuming from ")


_WORDS = ("--save-dir", "w/plain/checkpoints", "--lr", "0.003", "--cpu", "--update-freq", "4")
DONOR = ("w/data/bin", *_WORDS, "--adam-betas", "(0.9, 0.98)")


def begun(path, stage, words, tokens="2000"):
    """A run's folder in which a stage was begun."""
    path.mkdir()
    folder = RunFolder(path)
    with folder.changing() as record:
        record["arguments"][stage] = list(words)
        record["tokens"][stage] = tokens
    return folder


@pytest.mark.parametrize(
    ("now", "tokens", "message"),
    [
        (
            [*DONOR[:3], "--lr", "0.01", "--adam-betas", "(0.9, 0.98)", "--fp16"],
            "2000",
            "--lr was 0.003 and is 0.01 now. Set back what has changed, use another --work, or remove",
        ),
        (["x", *DONOR[1:]], "2000", "the data folder was w/data/bin and is x now."),
        (
            [*DONOR[:8], "--clip-norm", "1", "--share-all-embeddings"],
            "2000",
            "--adam-betas was (0.9, 0.98) and is not given now; --clip-norm was not given and is 1 "
            "now; --share-all-embeddings was not given and is given now.",
        ),
        (DONOR, "4000", "tokens-per-update was 2000 and is 4000 now."),
    ],
)
def test_other_arguments_are_named_with_both_values(tmp_path, now, tokens, message):
    folder = begun(tmp_path / "plain", "donor", DONOR)
    with pytest.raises(ReportError) as error:
        folder.check_same("donor", now, tokens)
    assert f"plain was started with other arguments of donor: {message}" in str(error.value)


ENDED = ("bin", "--max-epoch", "3", "--lr-scheduler", "inverse_sqrt", "--save-interval", "3")


@pytest.mark.parametrize(
    ("now", "goes_on"),
    [
        ((*ENDED[:2], "4", *ENDED[3:]), True),
        ((*ENDED[:2], "4", *ENDED[3:-1], "4"), True),  # the option for saving changes with it
        ((*ENDED[:2], "2", *ENDED[3:]), False),
        ((*ENDED[:-1], "4"), False),
        ((*ENDED[:2], "4", *ENDED[3:], "--lr", "1"), False),
        ((*ENDED, "--max-update", "9"), False),  # an earlier end, perhaps
        ((*ENDED[:2], "4", "--lr-scheduler", "cosine", *ENDED[5:]), False),
    ],
)
def test_a_training_may_end_later_and_nothing_else(tmp_path, now, goes_on):
    begun_with = tuple("cosine" if "cosine" in now and w == "inverse_sqrt" else w for w in ENDED)
    folder = begun(tmp_path / "run", "scratch", begun_with)
    assert not folder.check_same("scratch", list(begun_with), "2000", may_end_later=True)
    with pytest.raises(ReportError, match=r"started with other arguments of scratch"):
        folder.check_same("scratch", list(now), "2000")
    if goes_on:
        assert folder.check_same("scratch", list(now), "2000", may_end_later=True)
        with pytest.raises(ReportError, match=r"tokens-per-update was 2000 and is 4000 now\."):
            folder.check_same("scratch", list(now), "4000", may_end_later=True)
        (folder.path / "scores.test.json").touch()
    with pytest.raises(ReportError) as error:
        folder.check_same("scratch", list(now), "2000", may_end_later=True)
    remedy = "(to train further, remove average.json, generate.*, losses.* and scores.* there)"
    assert (remedy in str(error.value)) is goes_on


def test_another_search_asks_for_another_translation_not_another_training(tmp_path):
    folder = begun(tmp_path / "run", "generate", ["bin", "--beam", "4"])
    result = tmp_path / "run" / "generate.test.txt"
    result.touch()
    with pytest.raises(
        ReportError, match=r"--beam was 4 and is 5 now\. .* or remove generate\.\* and"
    ):
        folder.check_same("generate", ["bin", "--beam", "5"])
    result.unlink()  # as the message says
    folder.check_same("generate", ["bin", "--beam", "5"])


def test_the_same_arguments_on_other_gpus_go_on(tmp_path):
    folder = begun(tmp_path / "plain", "donor", DONOR)
    gpus = ["--distributed-world-size", "8", "--load-checkpoint-on-all-dp-ranks"]
    # The same numbers in another spelling, as older records have them.
    now = [*DONOR[:3], "--lr", "3e-03", *gpus, "--adam-betas", "(0.9, 0.98)", "--fp16"]
    folder.check_same("donor", [*now, "--update-freq", "1"], "2000")
    # Smaller batches for a smaller memory: an update is as large as before.
    less = [*DONOR, "--max-tokens", "1000", "--update-freq", "2", "--log-interval", "10"]
    folder.check_same("donor", less, "2000")
    RunFolder(tmp_path / "nothing yet").check_same("donor", now, "2000")


def at(root, data="w/data/bin"):
    """Return a training's arguments with folders spelt from ``root``."""
    start = ["--finetune-from-model", f"{root}w/run/warm_start.pt"]
    return [f"{root}{data}", "--lr", "1", "--save-dir", f"{root}w/run/checkpoints", *start]


@pytest.mark.parametrize("before", ["", "../", "/another/disk/", "absolute"])
def test_a_folder_spelt_in_another_way_goes_on(tmp_path, monkeypatch, before):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    before = f"{tmp_path}/" if before == "absolute" else before
    folder = begun(tmp_path / "w" / "run", "finetune", at(before))
    for now in (folder, RunFolder(Path("w/run"))):
        root = "" if now.path.parts[0] == "w" else f"{tmp_path}/"
        now.check_same("finetune", at(root), "2000")
        with pytest.raises(
            ReportError, match="the data folder was .*w/data/bin and is .*w/other/bin"
        ):
            now.check_same("finetune", at(root, data="w/other/bin"), "2000")
        # The arguments of a search have no folder for checkpoints.
        with folder.changing() as record:
            record["arguments"]["generate"] = at(before)[:3]
        (folder.path / "generate.test.txt").touch()
        now.check_same("generate", at(root)[:3])


def test_an_average_of_other_checkpoints_is_refused(tmp_path):
    folder = begun(tmp_path / "run", "scratch", DONOR)
    with folder.changing() as record:
        record["settings"] = {"average": "5", "average_of": "epochs"}
    folder.check_average({"average": "5", "average_of": "epochs"})
    with pytest.raises(ReportError, match="was made with average 5, not 3; .* remove average.json"):
        folder.check_average({"average": "3", "average_of": "epochs"})


def test_a_run_is_done_as_long_as_its_scores_exist(tmp_path):
    folder, scores = RunFolder(tmp_path), tmp_path / "scores.test.json"
    scores.touch()
    with folder.changing() as record:
        record |= {"state": "done", "made": {scores.name: []}}
    assert folder.read()["state"] == "done"
    scores.unlink()
    assert "state" not in folder.read()
    # It may end again without them: the configuration may have fewer test sets now.
    with folder.changing() as record:
        record["state"] = "done"
    assert folder.read()["state"] == "done"


@pytest.mark.parametrize("text", ["{", "[]", '{"arguments": {"donor": 3}}', '{"processes": "2"}'])
def test_a_record_of_another_shape_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ReportError, match=r"run\.json(: the| cannot be read)"):
        RunFolder(tmp_path).read()


def test_a_lock_is_held_once_and_looking_at_it_keeps_nobody_waiting(tmp_path):
    assert not is_locked(tmp_path / "lock")
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    assert is_locked(tmp_path / "lock")
    assert try_lock(tmp_path / "lock") is None


SETTINGS = {"source": "en", "target": "de", "bpe": "subword-nmt", "vocab": "40000"}
SETTINGS["wmt14"] = "en-de"


def data(folder, *, pair="en-de", rehearsal=False, **parameters):
    made = {"src": "en", "tgt": "de", "bpe": "subword-nmt", "vocab": 40000, **parameters}
    (folder / "summary.json").write_text(json.dumps({"parameters": made}))
    (folder / "wmt14.json").write_text(json.dumps({"pair": pair, "rehearsal": rehearsal}))
    return folder


def test_data_are_what_the_configuration_describes(tmp_path):
    check_data(data(tmp_path), SETTINGS, {}, rehearsal=False)
    check_data(data(tmp_path, rehearsal=True), SETTINGS, {}, rehearsal=True)
    check_data(data(tmp_path, vocab=None), SETTINGS, {}, rehearsal=False)  # from a ready model
    for changes, message in (
        ({"bpe": "sentencepiece"}, "was made with bpe sentencepiece, not subword-nmt"),
        ({"vocab": 32000}, "was made with vocab 32000, not 40000"),
        ({"rehearsal": True}, "holds a rehearsal's en-de"),
        ({"pair": "en-fr"}, "holds WMT14's en-fr"),
    ):
        with pytest.raises(ReportError, match=message):
            check_data(data(tmp_path, **changes), SETTINGS, {}, rehearsal=False)
    cleaned, cleaning = data(tmp_path, max_len=80, max_ratio=3.0), {"max_len": 80, "max_ratio": 3}
    check_data(cleaned, SETTINGS, {**cleaning, "separator": None}, rehearsal=False)
    with pytest.raises(ReportError, match="max_len 80, not 60: pass --raw"):
        check_data(cleaned, SETTINGS, {**cleaning, "max_len": 60}, rehearsal=False)
    with pytest.raises(ReportError, match="made with vocab 8000, not a given model"):
        check_data(data(tmp_path, vocab=8000), {**SETTINGS, "vocab": ""}, {}, rehearsal=False)


def test_the_loss_before_the_first_update_is_read_from_fairseqs_log(tmp_path):
    log, out = tmp_path / "before.log", tmp_path / "before.json"
    log.write_text("x | INFO | valid |  | valid on 'valid' subset | loss 3.25 | ppl 9.5 | bsz 12\n")
    write_validation(log, out)
    assert json.loads(out.read_text()) == {"subset": "valid", "loss": 3.25, "ppl": 9.5, "bsz": 12.0}
    log.write_text("nothing\n")
    with pytest.raises(ReportError, match="holds no result"):
        write_validation(log, out)


def test_a_run_says_if_its_code_has_changed_between_sessions(tmp_path, capsys):
    message = "the code has changed since this run's last session"
    scores = tmp_path / "rope-all-attention-scratch" / "scores.test.json"
    run(tmp_path, "rope", scratch=True)
    for code in (origin()["code"], "other"):
        with RunFolder(scores.parent).changing() as record:
            record["sessions"][-1]["code"] = code
        scores.unlink()
        run(tmp_path, "rope", scratch=True)
        assert (message in capsys.readouterr().err) == (code == "other")
