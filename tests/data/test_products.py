"""Data folders: kept while their input is the same, replaced only on demand, complete or absent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_floater.data import products
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.products import PreparedFolder, make_folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    for name in ("train", "valid"):
        (tmp_path / "raw" / name).write_text(name)
    return tmp_path / "raw"


def make(raw: Path, vocab: int = 60, force: bool = False) -> PreparedFolder:
    def build(work: Path) -> dict[str, Any]:
        (work / "data").write_text(str(vocab))
        return {"splits": {"train": {"lines": 1}}, "warnings": ["odd"]}

    inputs = [raw / "train", raw / "valid"]
    return make_folder(raw.parent / "out", {"vocab": vocab}, inputs, build, force=force)


def refused(message: str, raw: Path, **options: Any) -> None:
    with pytest.raises(TextDataError, match=message):
        make(raw, **options)


def test_the_same_input_is_used_once_wherever_it_lies(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make(raw)
    assert capsys.readouterr().err == "warning: odd\n"
    made = (tmp_path / "out" / "data").stat().st_mtime_ns
    again = make(Path(shutil.move(raw, tmp_path / "elsewhere")), force=True)
    assert again.summary == first.summary
    assert (tmp_path / "out" / "data").stat().st_mtime_ns == made
    assert capsys.readouterr().err == f"{tmp_path / 'out'} exists already: skipped.\n"


def test_a_folder_that_lacks_a_file_is_made_again(raw: Path, tmp_path: Path) -> None:
    make(raw)
    (tmp_path / "out" / "data").unlink()
    make(raw)
    assert (tmp_path / "out" / "data").read_text() == "60"


def test_another_fairseq_and_no_tokenizers_will_do(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"fairseq": "1.0", "sentencepiece": "0.2"}
    monkeypatch.setattr(products, "version_of", there.get)
    assert make(raw).summary["packages"] == there


def test_other_input_is_named_and_needs_force(raw: Path, tmp_path: Path) -> None:
    make(raw)
    refused(r"made with `vocab` 60, not 61; choose another OUT or add --force", raw, vocab=61)
    (raw / "valid").write_text("other")
    refused(f"made with another {raw}/valid; choose another OUT or add --force", raw)
    assert (tmp_path / "out" / "data").read_text() == "60"
    make(raw, vocab=61, force=True)
    assert (tmp_path / "out" / "data").read_text() == "61"
    (tmp_path / "out" / "notes").write_text("mine")
    refused(r"out/notes was not made by floater and would be deleted", raw, force=True)
    (raw / "valid").unlink()
    refused(r"raw/valid is missing\.", raw, force=True)


def test_a_folder_behind_a_link_is_replaced(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    for vocab in (60, 61):
        make(raw, vocab=vocab, force=True)
        assert (tmp_path / "disk" / "data").read_text() == str(vocab)


@pytest.mark.parametrize("record", [None, {}, []])
def test_what_others_made_is_never_replaced(raw: Path, tmp_path: Path, record: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    if record is not None:
        (out / "summary.json").write_text(json.dumps(record))
    refused(r"out was not made by floater; choose another OUT\.", raw, force=True)
    assert (out / "mine").exists()


def test_what_a_killed_run_left_is_replaced(raw: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "half").touch()
    make(raw)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data", "summary.json"]


def test_an_older_record_of_more_inputs_differs(raw: Path, tmp_path: Path) -> None:
    make(raw)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    summary["inputs"]["/gone/test"] = "0"
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    refused("made with another /gone/test", raw)
