"""scripts/prepare_mlm.sh on a stand-in of WikiText-103: a mirror, checksums, other counts than published."""

import json
import zipfile

import pytest
from toy import ROOT, run

from fairseq_floater.cli import main

SCRIPT = ROOT / "scripts" / "prepare_mlm.sh"
NAME = "wikitext-103-raw"
TEXT = (
    " \n = A title = \n \n The first paragraph of a small text has words . \n \n Another one . \n"
)


@pytest.fixture
def mirror(tmp_path):
    """A folder with an archive of WikiText's form."""
    folder = tmp_path / "a mirror"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{NAME}-v1.zip", "w") as archive:
        for split, times in (("train", 30), ("valid", 2), ("test", 2)):
            archive.writestr(f"{NAME}/wiki.{split}.raw", TEXT * times)
    return folder


def test_from_a_mirror_to_data(mirror, tmp_path):
    out = tmp_path / "mlm"
    words = [out, "--bpe", "sentencepiece", "--vocab", 60, "--mirror", mirror]
    # The stand-in is not the published archive.
    refused = run(["bash", SCRIPT, *words], code=1)
    assert "must have the SHA-256 91c00ae287f0d699e18605c84afc9e45" in refused.stderr
    assert not out.exists()
    done = run(["bash", SCRIPT, *words, "--rehearsal"])
    splits = json.loads((out / "summary.json").read_text())["splits"]
    assert splits["train"]["lines"] == TEXT.count("\n") * 30
    assert "are published for wikitext-103" in done.stderr + done.stdout
    assert (tmp_path / "mlm.rehearsal" / NAME / "wiki.train.raw").read_text() == TEXT * 30
    # Whole results are not made again.
    assert "exists already: skipped" in run(["bash", SCRIPT, *words, "--rehearsal"]).stderr


def test_own_text_may_be_packed_and_without_test(tmp_path, capsys):
    (tmp_path / "train.txt.gz").touch()
    (tmp_path / "valid.txt").touch()
    words = ["words", "out", "--text", str(tmp_path), "--bpe", "sentencepiece", "--vocab", "60"]
    assert main(["mlm", "wikitext", *words]) == 0
    found = capsys.readouterr().out
    assert found.startswith(
        f"out\n--train\n{tmp_path}/train.txt.gz\n--valid\n{tmp_path}/valid.txt\n"
    )
    assert "--test" not in found


def test_what_is_given_is_not_fetched(tmp_path, capsys):
    words = ["archives", str(tmp_path / "mlm"), "--bpe", "gpt2", "--text", "text"]
    assert main(["mlm", "wikitext", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split(" ")[0].rpartition("/")[2] for line in lines]
    assert names == ["encoder.json", "vocab.bpe", "dict.txt"]
    assert lines[2].split(" ")[1:3] == ["-", "-"]  # its checksum is nowhere published
    assert main(["mlm", "wikitext", *words, "--bpe-dir", "bpe", "--dict", "dict.txt"]) == 0
    assert capsys.readouterr().out == ""


def test_an_archive_of_something_else_is_named(mirror, tmp_path, capsys):
    out = tmp_path / "mlm"
    archives = tmp_path / "mlm.archives"
    archives.mkdir()
    with zipfile.ZipFile(archives / f"{NAME}-v1.zip", "w") as archive:
        archive.writestr("other", "x")
    assert main(["mlm", "wikitext", "text", str(out), "--bpe", "gpt2"]) == 1
    assert "is not an archive of WikiText-103" in capsys.readouterr().err
