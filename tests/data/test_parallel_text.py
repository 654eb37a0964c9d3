"""Raw text is read line by line, every fault a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prepared_text import VOCAB, zipped

from fairseq_floater.cli import main
from fairseq_floater.data.parallel_text import check_parallel, find_splits, read_lines


def test_splits_are_found_in_a_fixed_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = ("test_b.en", "test-a.de.gz", "test.2014.en", "test.de")
    for name in (*ours, "tests", "testing.fr", "test,c.en"):
        (tmp_path / name).touch()
    found = find_splits(tmp_path, "en", "de")
    assert found == ["train", "valid", "test", "test-a", "test.2014", "test_b"]
    assert "warning: the test set `test,c` is left out" in capsys.readouterr().err


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffone\r\n\ntwo\u2028three\x0bfour\rfive\x85\nlast".encode())
    assert list(read_lines(path)) == ["one", "", "two three four five ", "last"]


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda raw: (raw / name).write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda raw: (raw / "test.de").unlink(),
            r"\S+/test\.de is missing \(so is test\.de\.gz\)\.",
        ),
        (
            _write("valid.de", b"eins\nzwei\n"),
            r"\S+/valid\.en has 20 lines, but \S+/valid\.de has 2\.",
        ),
        (
            _write("train.de", b"gut\nei@@ ns\nzw@@ ei\n"),
            r"\S+/train\.de is in subwords \(line 2\), .+\.",
        ),
        (_write("test.en", b""), r"\S+/test\.en is empty\."),
        (
            _write("train.de", b"gut\nf\xfcnf\n"),
            r"\S+/train\.de, line 2 is not valid UTF-8 \(byte 2 of it\)\.",
        ),
        (_write("test.en", b"a\nb\nc\0\n"), r"\S+/test\.en, line 3 holds a NUL character\."),
        (zipped("train.en", 500), r"\S+/train\.en\.gz is not a valid gzip file: .+\."),
        (
            zipped("train.en", None, keep=True),
            r"\S+/train\.en and \S+/train\.en\.gz both exist; remove one of them\.",
        ),
    ],
    ids=["missing", "unequal", "subwords", "empty", "UTF-8", "NUL", "gzip", "twice"],
)
def test_faulty_text_is_refused(
    raw: Path, tmp_path: Path, spoil: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(raw)
    assert main(["prepare", str(raw), str(tmp_path / "out"), *VOCAB]) == 1
    assert re.fullmatch(f"floater prepare: {message}\n", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_pairs_are_counted(numbers: Path) -> None:
    counts = check_parallel(numbers, "en", "de", ["train", "valid", "test"])
    assert counts == {"train": 400, "valid": 20, "test": 30}
