"""Warm start: refusals and notes, each by name."""

import json

import pytest
import torch
from helpers import TINY, save_donor

from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    load_checkpoint,
)
from fairseq_floater.cli import main


@pytest.mark.parametrize(
    ("donor_options", "arguments", "words"),
    [
        (
            {},
            ["--arch", "floater_transformer"],
            "donor.pt has another shape: its --encoder-embed-dim is 64",
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


def test_a_mistyped_option_and_a_text_file_are_named_in_one_line(tmp_path, capsys):
    donor, page = save_donor(tmp_path / "donor.pt"), tmp_path / "page.pt"
    page.write_text("<html>not found</html>")
    arguments = [str(tmp_path / "out.pt"), "--arch", TINY]
    assert main(["warm-start", str(donor), *arguments, "--position-encodr", "rope"]) == 2
    message = capsys.readouterr().err
    assert "unrecognized arguments: --position-encodr rope" in message
    assert message.count("\n") == 1
    assert main(["warm-start", str(page), *arguments]) == 1
    assert "page.pt was not saved by torch" in capsys.readouterr().err


def write_dictionaries(folder, words):
    folder.mkdir()
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{w} 1\n" for w in words))
    return folder


def test_dictionaries_are_compared(tmp_path, start):
    words = [f"w{i}" for i in range(36)]
    trained_on = write_dictionaries(tmp_path / "own", words)
    donor = save_donor(tmp_path / "donor.pt", data=str(trained_on))
    start(donor, data=str(write_dictionaries(tmp_path / "same", words)))
    shorter = write_dictionaries(tmp_path / "shorter", words[:-1])
    with pytest.raises(CheckpointError, match=r"shorter/dict.en.txt has 39 .*donor.pt.*with 40"):
        start(donor, data=str(shorter))
    swapped = write_dictionaries(tmp_path / "swapped", [*words[1:], words[0]])
    with pytest.raises(CheckpointError, match=r"swapped/dict.en.txt is not .*own/.*: entry 4 is"):
        start(donor, data=str(swapped))
    with pytest.raises(CheckpointError, match="no dictionary"):
        start(donor, data=str(tmp_path))


def test_languages_that_the_donor_does_not_name_are_those_of_the_data(tmp_path, start):
    # As after fairseq-train without -s and -t, which finds them in the names of the files.
    donor = save_donor(tmp_path / "donor.pt")
    state = torch.load(donor, weights_only=False)
    state["cfg"]["task"].update(source_lang=None, target_lang=None)
    torch.save(state, donor)
    data = write_dictionaries(tmp_path / "data", [f"w{i}" for i in range(36)])
    (data / "train.en-de.en.idx").touch()
    start(donor, data=str(data))


def test_an_existing_output_is_kept(tmp_path, donor, capsys):
    out = tmp_path / "out.pt"
    out.write_text("precious")
    arguments = ["warm-start", str(donor), str(out), "--arch", TINY]
    assert main(arguments) == 1
    assert "out.pt exists" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main([*arguments, "--force"]) == 0


@pytest.mark.parametrize("kind", ["missing", "truncated", "other"])
def test_unusable_checkpoints_are_named(tmp_path, donor, capsys, kind):
    path = tmp_path / f"{kind}.pt"
    if kind == "truncated":
        path.write_bytes(donor.read_bytes()[:20_000])
    elif kind == "other":
        torch.save({"weights": torch.zeros(3)}, path)
    assert main(["warm-start", str(path), str(tmp_path / "out.pt"), "--arch", TINY]) == 1
    message = capsys.readouterr().err
    assert f"{kind}.pt" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out.pt").exists()


def test_left_overs_of_older_fairseq_are_listed_and_other_tensors_refused(start, donor):
    state = load_checkpoint(donor)
    state["model"]["encoder.layers.0.in_proj_weight"] = torch.zeros(3)
    state["model"]["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    torch.save(state, donor)
    report, _ = start(donor)
    assert report.ignored == list(state["model"])[-2:]
    state["model"]["encoder.adapter.weight"] = torch.zeros(3)
    torch.save(state, donor)
    with pytest.raises(CheckpointError, match="encoder.adapter.weight"):
        start(donor)


def test_json_says_what_the_screen_says(tmp_path, donor, capsys):
    out = tmp_path / "report.json"
    paths = [str(donor), str(tmp_path / "o.pt")]
    assert main(["warm-start", *paths, "--arch", TINY, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert f"copied   {len(report['copied'])} tensors" in capsys.readouterr().out
    assert sum(report["new"].values()) > 0
