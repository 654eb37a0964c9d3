"""The built-in corpus: right, distinct, and the same everywhere."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prepared_text import contents

from fairseq_floater.data.number_words import (
    LANGUAGES,
    MANIFEST,
    draw_lines,
    phrase,
    write_numbers,
)
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import UserError

SMALL: dict[str, Any] = {"train": 300, "valid": 40, "test": 40, "test_long": 20, "max_number": 999}
SPLITS = ("train", "valid", "test", "test_long")


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize(
    ("number", "english", "german", "french"),
    [
        (0, "zero", "null", "zéro"),
        (42, "forty-two", "zweiundvierzig", "quarante-deux"),
        (1100, "one thousand one hundred", "eintausendeinhundert", "mille cent"),
        (99, "ninety-nine", "neunundneunzig", "quatre-vingt-dix-neuf"),
    ],
)
def test_phrases(number: int, english: str, german: str, french: str) -> None:
    assert [phrase(number, lang) for lang in ("en", "de", "fr")] == [english, german, french]


@pytest.mark.parametrize("language", LANGUAGES)
def test_phrases_tell_numbers_apart_and_hold_no_separator(language: str) -> None:
    # A phrase with a comma, or one phrase for two numbers, would give a line two right answers.
    phrases = [phrase(n, language) for n in itertools.chain(range(10_000), range(1, 10**6, 997))]
    assert not any("," in text for text in phrases)
    assert len(set(phrases)) == len({*range(10_000), *range(1, 10**6, 997)})


def test_lines_are_the_same_on_every_machine() -> None:
    drawn = list(draw_lines("train", 4, (1, 4), max_number=9_999, seed=1))
    assert drawn == [(3, 975), (106, 6024), (3, 96, 1531, 5034), (8, 59, 495)]


def test_every_line_is_translated_right(tmp_path: Path) -> None:
    write_numbers(tmp_path, target_language="fr", **SMALL)
    number = {phrase(n, "en"): n for n in range(1000)}
    for split, (fewest, most) in {"train": (1, 4), "test": (1, 4), "test_long": (6, 10)}.items():
        lengths = set()
        for source, target in zip(
            lines(tmp_path, f"{split}.en"), lines(tmp_path, f"{split}.fr"), strict=True
        ):
            numbers = [number[text] for text in source.split(", ")]
            assert target == ", ".join(phrase(n, "fr") for n in numbers)
            lengths.add(len(numbers))
        assert lengths == set(range(fewest, most + 1))


def test_short_numbers_are_as_frequent_as_long_ones() -> None:
    drawn = draw_lines("train", 2000, (2, 4), max_number=9_999, seed=3)
    digits = [len(str(number)) for numbers in drawn for number in numbers]
    for length in range(1, 5):
        assert digits.count(length) / len(digits) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("long_span", [(6, 10), (1, 4)])
def test_splits_share_no_line(tmp_path: Path, long_span: tuple[int, int]) -> None:
    write_numbers(tmp_path, **{**SMALL, "max_number": 99}, long_numbers_per_line=long_span)
    for language in ("en", "de"):
        texts = [line for split in SPLITS for line in lines(tmp_path, f"{split}.{language}")]
        assert len(set(texts)) == len(texts) == 400


def test_the_size_of_a_split_changes_no_other(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a", **SMALL)
    write_numbers(tmp_path / "b", **{**SMALL, "train": 200, "test": 10, "test_long": 0})
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert a["valid.en"] == b["valid.en"] and a["valid.de"] == b["valid.de"]
    assert a["train.de"].startswith(b["train.de"]) and a["test.de"].startswith(b["test.de"])
    assert "test_long.en" in a and "test_long.en" not in b
    write_numbers(tmp_path / "c", **SMALL, seed=2)
    assert contents(tmp_path / "c")["train.en"] != a["train.en"]


def test_a_whole_corpus_is_left_alone(tmp_path: Path) -> None:
    first = write_numbers(tmp_path, **SMALL)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = write_numbers(tmp_path, **SMALL)
    assert (first.skipped, second.skipped) == (False, True)
    assert second.files == first.files == json.loads((tmp_path / MANIFEST).read_text())["files"]
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    assert "left as it is" in second.format_text() and "is written" in first.format_text()


def test_a_broken_off_corpus_is_completed(tmp_path: Path) -> None:
    write_numbers(tmp_path, **SMALL)
    whole = contents(tmp_path)
    (tmp_path / MANIFEST).unlink()
    (tmp_path / "test.de").unlink()
    (tmp_path / ".numbers.tmp").mkdir()
    (tmp_path / ".numbers.tmp" / "train.en").write_text("forty-")
    assert not write_numbers(tmp_path, **SMALL).skipped
    assert contents(tmp_path) == whole


def test_other_content_is_kept_unless_overwritten(tmp_path: Path) -> None:
    write_numbers(tmp_path, **SMALL)
    before = contents(tmp_path)
    other = {**SMALL, "train": 200, "test_long": 0}
    message = f"{tmp_path / 'train.en'} has other content; choose another folder"
    with pytest.raises(TextDataError, match=f"^{re.escape(message)}"):
        write_numbers(tmp_path, **other)
    assert contents(tmp_path) == before

    (tmp_path / "notes.txt").write_text("mine")
    write_numbers(tmp_path, **other, overwrite=True)
    names = {f"{split}.{lang}" for split in SPLITS[:3] for lang in ("en", "de")}
    assert set(contents(tmp_path)) == {*names, MANIFEST, "notes.txt"}
    assert len(lines(tmp_path, "train.en")) == 200
    write_numbers(tmp_path, **{**other, "target_language": "fr"}, overwrite=True)
    assert not (tmp_path / "train.de").exists()


def test_text_that_floater_did_not_make_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("mine")
    with pytest.raises(
        TextDataError, match=r"train\.en has other content; choose another folder\."
    ):
        write_numbers(tmp_path, **SMALL, overwrite=True)
    assert contents(tmp_path) == {"train.en": b"mine"}
    write_numbers(tmp_path / "ours", **{**SMALL, "test_long": 0})
    (tmp_path / "ours" / "test_long.en").write_text("mine")
    with pytest.raises(
        TextDataError, match=r"test_long\.en has other content; choose another folder\."
    ):
        write_numbers(tmp_path / "ours", **SMALL, overwrite=True)


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    write_numbers(tmp_path, **SMALL)
    whole = contents(tmp_path)
    with (tmp_path / "train.de").open("a") as file:
        file.write("eins\n")
    with pytest.raises(TextDataError, match=r"train\.de has other content"):
        write_numbers(tmp_path, **SMALL)
    write_numbers(tmp_path, **SMALL, overwrite=True)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_language": "xx"}, "`target_language` must be one of de, en, fr, but is 'xx' "),
        ({"target_language": "en"}, "The two languages must differ, but both are 'en'."),
        ({"valid": 0}, "`valid` must be at least 1, but is 0 instead."),
        ({"numbers_per_line": (3, 2)}, "`numbers_per_line` must be two numbers A B with"),
        ({"max_number": 10**6}, "`max_number` must be from 0 to 999999, but is 1000000 instead."),
        (
            {"max_number": 9, "numbers_per_line": (1, 1), "train": 11},
            "`train` must be smaller, but is 11: after ",
        ),
    ],
)
def test_impossible_corpora_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        write_numbers(tmp_path, **{**SMALL, **arguments})
    assert contents(tmp_path) == {}
