"""Warm start: what is refused or said, by name."""

import json

import pytest
import torch
from fault_disks import small_disk
from helpers import TINY, save_donor

from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    load_checkpoint,
)
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.cli import main


@pytest.mark.parametrize(
    ("donor_options", "arguments", "words"),
    [
        (
            {},
            ["--arch", "floater_transformer"],
            "donor.pt is of another shape: its --encoder-embed-dim is 64",
        ),
        ({}, ["--arch", TINY, "--encoder-layers", "3"], "its --encoder-layers is 2"),
        (
            {"decoder_layers": 3},
            ["--arch", TINY, "--decoder-layers", "1"],
            "its --decoder-layers is 3",
        ),
    ],
)
def test_another_shape_is_refused(tmp_path, capsys, donor_options, arguments, words):
    path = save_donor(tmp_path / "donor.pt", **donor_options)
    assert main(["warm-start", str(path), str(tmp_path / "out.pt"), *arguments]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()


def write_dictionaries(folder, words):
    folder.mkdir()
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{w} 1\n" for w in words))
    return folder


def test_dictionaries_are_compared(tmp_path):
    words = [f"w{i}" for i in range(36)]
    own = write_dictionaries(tmp_path / "own", words)
    donor = save_donor(tmp_path / "donor.pt", data=str(own))
    same = write_dictionaries(tmp_path / "same", words)
    shorter = write_dictionaries(tmp_path / "shorter", words[:-1])
    swapped = write_dictionaries(tmp_path / "swapped", [*words[1:], words[0]])
    warm_start(donor, tmp_path / "a.pt", arch=TINY, data=str(same))
    with pytest.raises(
        CheckpointError, match=r"shorter/dict.en.txt has 39 entries.*donor.pt.*with 40"
    ):
        warm_start(donor, tmp_path / "b.pt", arch=TINY, data=str(shorter))
    with pytest.raises(
        CheckpointError, match=r"swapped/dict.en.txt is not .*own/dict.en.txt.*entry 4"
    ):
        warm_start(donor, tmp_path / "c.pt", arch=TINY, data=str(swapped))
    with pytest.raises(CheckpointError, match="no dictionary"):
        warm_start(donor, tmp_path / "d.pt", arch=TINY, data=str(tmp_path))


def test_languages_that_the_donor_does_not_name_are_those_of_the_data(tmp_path):
    # As after fairseq-train without -s and -t, which finds them in the names of the files.
    donor = save_donor(tmp_path / "donor.pt")
    state = torch.load(donor, weights_only=False)
    state["cfg"]["task"].update(source_lang=None, target_lang=None)
    torch.save(state, donor)
    data = write_dictionaries(tmp_path / "data", [f"w{i}" for i in range(36)])
    (data / "train.en-de.en.idx").touch()
    warm_start(donor, tmp_path / "out.pt", arch=TINY, data=str(data))


def test_an_existing_output_is_kept(tmp_path, donor, capsys):
    out = tmp_path / "out.pt"
    out.write_text("precious")
    arguments = ["warm-start", str(donor), str(out), "--arch", TINY]
    assert main(arguments) == 1
    assert "out.pt exists" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main([*arguments, "--force"]) == 0


@pytest.mark.parametrize("kind", ["missing", "truncated", "text", "empty", "other"])
def test_unusable_checkpoints_are_named(tmp_path, donor, capsys, kind):
    path = tmp_path / f"{kind}.pt"
    if kind == "truncated":
        path.write_bytes(donor.read_bytes()[:20_000])
    elif kind == "text":
        path.write_text("not a checkpoint\n")
    elif kind == "empty":
        path.touch()
    elif kind == "other":
        torch.save({"weights": torch.zeros(3)}, path)
    assert main(["warm-start", str(path), str(tmp_path / "out.pt"), "--arch", TINY]) == 1
    message = capsys.readouterr().err
    assert f"{kind}.pt" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out.pt").exists()


def test_left_overs_of_older_fairseq_are_listed_and_other_tensors_refused(tmp_path, donor):
    state = load_checkpoint(donor)
    state["model"]["encoder.layers.0.in_proj_weight"] = torch.zeros(3)
    state["model"]["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    torch.save(state, donor)
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY)
    assert report.ignored == list(state["model"])[-2:]
    state["model"]["encoder.adapter.weight"] = torch.zeros(3)
    torch.save(state, donor)
    with pytest.raises(CheckpointError, match="encoder.adapter.weight"):
        warm_start(donor, tmp_path / "out2.pt", arch=TINY)


def test_json_says_what_the_screen_says(tmp_path, donor, capsys):
    out = tmp_path / "report.json"
    arguments = [
        "warm-start",
        str(donor),
        str(tmp_path / "o.pt"),
        "--arch",
        TINY,
        "--json",
        str(out),
    ]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert f"copied   {len(report['copied'])} tensors" in capsys.readouterr().out
    assert sum(report["new"].values()) > 0


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, donor, capsys):
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, "64k"):
        assert main(["warm-start", str(donor), str(folder / "out.pt"), "--arch", TINY]) == 1
        message = capsys.readouterr().err
        assert "out.pt could not be written" in message
        assert message.count("\n") == 1
        assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_is_one_sentence(donor, capsys):
    assert main(["warm-start", str(donor), "/dev/null/out.pt", "--arch", TINY]) == 1
    assert "/dev/null/out.pt could not be written" in capsys.readouterr().err
