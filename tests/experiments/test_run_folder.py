"""What protocol.sh asks of a run's folder, and what it sees of the machine's GPUs."""

import json

import pytest
import torch
from toy import ROOT, environment, run

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.experiments.run_folder import check_data, check_same, field, main, resume
from fairseq_floater.records import ReportError


@pytest.fixture
def stopped(tmp_path):
    """A run of two processes that was stopped within its third epoch."""
    (tmp_path / "checkpoints").mkdir()
    save(tmp_path, 7)
    (tmp_path / "world").write_text("2\n")
    return tmp_path


def save(folder, iterations):
    place = {"epoch": 3, "iterations_in_epoch": iterations}
    state = {"model": {"a": torch.zeros(1)}, "extra_state": {"train_iterator": place}}
    torch.save(state, folder / "checkpoints" / "checkpoint_last.pt")


def test_within_an_epoch_the_number_of_processes_stays(stopped):
    message = r"lies within epoch 3 and was saved by 2 processes: go on with 2, or put"
    with pytest.raises(CheckpointError, match=message):
        resume(str(stopped), 1)
    assert resume(str(stopped), 2).startswith("resuming from ")


def test_at_the_end_of_an_epoch_it_may_change(stopped):
    save(stopped, 0)
    assert resume(str(stopped), 8).startswith("resuming from ")
    assert (stopped / "world").read_text() == "8\n"
    (stopped / "checkpoints" / "checkpoint_last.pt").unlink()
    assert resume(str(stopped), 4) == "nothing to resume from"


SETTINGS = "source=en\ntarget=de\nbpe=subword-nmt\nvocab=40000\nwmt14=en-de\n"


def data(folder, *, pair="en-de", rehearsal=False, **parameters):
    made = {"src": "en", "tgt": "de", "bpe": "subword-nmt", "vocab": 40000, **parameters}
    (folder / "summary.json").write_text(json.dumps({"parameters": made}))
    (folder / "wmt14.json").write_text(json.dumps({"pair": pair, "rehearsal": rehearsal}))
    (folder / "settings.args").write_text(SETTINGS)
    return str(folder), str(folder / "settings.args")


def test_data_are_what_the_configuration_describes(tmp_path):
    check_data(*data(tmp_path), rehearsal=False)
    check_data(*data(tmp_path, rehearsal=True), rehearsal=True)
    check_data(*data(tmp_path, vocab=None), rehearsal=False)  # of a ready model
    for changes, message in (
        ({"bpe": "sentencepiece"}, "was made with bpe sentencepiece, not subword-nmt"),
        ({"vocab": 32000}, "was made with vocab 32000, not 40000"),
        ({"rehearsal": True}, "holds a rehearsal's en-de"),
        ({"pair": "en-fr"}, "holds WMT14's en-fr"),
    ):
        with pytest.raises(ReportError, match=message):
            check_data(*data(tmp_path, **changes), rehearsal=False)


def arguments(folder, stage, words, tokens=2000):
    folder.mkdir(exist_ok=True)
    (folder / f"{stage}.args").write_text("".join(f"{word}\n" for word in words))
    (folder / f"{stage}.tokens").write_text(f"{tokens}\n")
    (folder / "settings.args").write_text(f"seed=1\nconfigured_tokens={tokens}\n")


DONOR = (
    "w/data/bin",
    "--lr",
    "0.003",
    "--cpu",
    "--update-freq",
    "4",
    "--adam-betas",
    "(0.9, 0.98)",
)


@pytest.mark.parametrize(
    ("now", "tokens", "message"),
    [
        (
            ["w/data/bin", "--lr", "0.01", "--adam-betas", "(0.9, 0.98)", "--fp16"],
            2000,
            "--lr was 0.003 and is 0.01 now. Set back what has changed, use another --work, or remove",
        ),
        (["x", *DONOR[1:]], 2000, "the data folder was w/data/bin and is x now."),
        (
            [*DONOR[:6], "--clip-norm", "1", "--share-all-embeddings"],
            2000,
            "--adam-betas was (0.9, 0.98) and is not given now; --clip-norm was not given and is 1 "
            "now; --share-all-embeddings was not given and is given now.",
        ),
        (DONOR, 4000, "tokens-per-update was 2000 and is 4000 now."),
    ],
)
def test_other_arguments_are_named_with_both_values(tmp_path, now, tokens, message):
    arguments(tmp_path / "plain", "donor", DONOR)
    arguments(tmp_path / "now", "donor", now, tokens)
    with pytest.raises(ReportError) as error:
        check_same(str(tmp_path / "plain"), "donor", str(tmp_path / "now"))
    assert f"plain was started with other arguments of donor: {message}" in str(error.value)


def test_another_search_asks_for_another_translation_not_another_training(tmp_path):
    arguments(tmp_path / "run", "generate", ["bin", "--beam", "4"])
    arguments(tmp_path / "now", "generate", ["bin", "--beam", "5"])
    with pytest.raises(
        ReportError, match=r"--beam was 4 and is 5 now\. .* or remove generate\.\* and"
    ):
        check_same(str(tmp_path / "run"), "generate", str(tmp_path / "now"))


def test_the_same_arguments_on_other_gpus_go_on(tmp_path):
    arguments(tmp_path / "plain", "donor", DONOR)
    gpus = [
        "--distributed-world-size",
        "8",
        "--load-checkpoint-on-all-dp-ranks",
        "--update-freq",
        "1",
    ]
    now = ["w/data/bin", "--lr", "0.003", *gpus, "--adam-betas", "(0.9, 0.98)", "--fp16"]
    arguments(tmp_path / "now", "donor", now)
    check_same(str(tmp_path / "plain"), "donor", str(tmp_path / "now"))
    check_same(str(tmp_path / "nothing yet"), "donor", str(tmp_path / "now"))


def test_a_field_of_a_file(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"b": {"c": 5}}')
    assert field(str(tmp_path / "a.json"), "b", "c") == "5"
    assert main(["field", str(tmp_path / "a.json"), "b", "d"]) == 1
    assert "holds no b d." in capsys.readouterr().err


COMMON = f'source "{ROOT}/scripts/common.sh"; '


def gpus(tmp_path, number, command, **variables):
    """A shell command with common.sh, on a machine whose nvidia-smi shows so many GPUs."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    smi = folder / "nvidia-smi"
    lines = "".join(f"{n}\\n" for n in range(number))
    smi.write_text(f'#!/bin/sh\nprintf "{lines}"\n')
    smi.chmod(0o755)
    env = environment(PATH=f"{folder}:{environment()['PATH']}", **variables)
    if "CUDA_VISIBLE_DEVICES" not in variables:
        del env["CUDA_VISIBLE_DEVICES"]
    return run(["bash", "-c", COMMON + command], env=env).stdout.strip()


def test_gpus_are_those_that_a_program_sees(tmp_path):
    assert gpus(tmp_path, 8, "count_gpus") == "8"
    assert gpus(tmp_path, 8, "count_gpus", CUDA_VISIBLE_DEVICES="3,5") == "2"
    assert gpus(tmp_path, 8, "count_gpus", CUDA_VISIBLE_DEVICES="") == "0"
    assert gpus(tmp_path, 0, "count_gpus") == "0"


def test_a_run_sees_no_more_gpus_than_it_uses(tmp_path):
    shown = 'use_gpus {}; printf "<%s>" "$CUDA_VISIBLE_DEVICES"'
    assert gpus(tmp_path, 8, shown.format(2)) == "<0,1>"
    assert gpus(tmp_path, 8, shown.format(1), CUDA_VISIBLE_DEVICES="5,3") == "<5>"
    assert gpus(tmp_path, 8, shown.format(0)) == "<>"
    env = environment(CUDA_VISIBLE_DEVICES="0")
    refused = run(["bash", "-c", COMMON + "use_gpus 2"], env=env, code=1)
    assert "--processes 2, but this machine shows 1 GPUs" in refused.stderr


def test_a_stopped_script_stops_what_it_runs(tmp_path):
    """SIGTERM to the script alone: its command ends too, and what follows is not begun."""
    script = (
        COMMON + 'stoppable bash -c \'trap "touch ended; exit" TERM; touch begun; '
        "for i in {1..600}; do sleep 0.1; done'; touch next"
    )
    stop = "while [[ ! -f begun ]]; do sleep 0.05; done; kill -TERM $child"
    whole = f'bash -c "$1" & child=$!; {stop}; wait $child'
    run(["bash", "-c", whole, "test", script], cwd=tmp_path, code=143)
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "next").exists()
