"""Documents of a parallel text: the same sentences, joined by a word that stays in one piece."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from prepared_text import encode_all, text_lines

from fairseq_floater.data.documents import join_lines
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.sentencepiece_subwords import load_model

MARK = "<s2>"


def test_every_form_of_a_split_has_its_sentences_in_order(numbers: Path, tmp_path: Path) -> None:
    (numbers / "test.groups").write_text("long\n" * 30)
    raw = tmp_path / "text\udcff"  # a name in another encoding
    raw.symlink_to(numbers)
    joined = join_lines(raw, tmp_path / "out", segments=[2, 4], separator=MARK)
    assert [*joined.folder.glob("*.groups")] == [joined.folder / "test.groups"]
    forms = {"train": [1, 2, 4], "valid": [1, 2, 4], "test": [1], "test_2": [2], "test_4": [4]}
    for name, sizes in forms.items():
        for lang in ("en", "de"):
            documents = [d.split(f" {MARK} ") for d in text_lines(joined.folder / f"{name}.{lang}")]
            sentences = iter(text_lines(numbers / f"{name.partition('_')[0]}.{lang}"))
            for k, document in enumerate(documents):
                assert document == [*islice(sentences, sizes[k % len(sizes)])]
            assert [*sentences] == []
    assert joined.summary["splits"]["test_4"] == {"documents": 8, "sentences": 30}
    assert {p.name for p in joined.folder.glob("*.en")} >= {"test_long_2.en", "test_long_4.en"}


def test_text_that_cannot_be_joined_is_refused(raw: Path, tmp_path: Path) -> None:
    for separator, rule in (("zwanzig", "holds `zwanzig`: choose"), (MARK, "two languages")):
        with pytest.raises(TextDataError, match=rule):
            join_lines(raw, tmp_path / "out", segments=[2], separator=separator)
        assert not (tmp_path / "out").exists()
        (raw / "train.fr").write_text("un\n")


def test_a_form_of_a_split_replaces_no_other_split(numbers: Path, tmp_path: Path) -> None:
    for lang in ("en", "de"):
        (numbers / f"test_2.{lang}").write_text("one\n")
    with pytest.raises(TextDataError, match="holds the test split test_2"):
        join_lines(numbers, tmp_path / "out", segments=[2], separator=MARK)


@pytest.mark.parametrize("separator", ["</s>", "<unk>", "a b", "\u2581"])
def test_what_no_subword_can_be_is_no_separator(
    separator: str, numbers: Path, tmp_path: Path
) -> None:
    with pytest.raises(TextDataError, match="separator must be one word"):
        encode_all(numbers, tmp_path / "data", vocab=80, separator=separator)


def test_the_separator_is_one_subword_and_comes_back(numbers: Path, tmp_path: Path) -> None:
    folder = join_lines(numbers, tmp_path / "out", segments=[3], separator=MARK).folder
    encode_all(folder, tmp_path / "data", vocab=80, separator=MARK)
    assert text_lines(tmp_path / "data" / "dict.txt").count(f"{MARK} 1") == 1
    model = load_model(tmp_path / "data" / "spm.model")
    for lang in ("en", "de"):
        cut = text_lines(tmp_path / "data" / "spm" / f"test_3.{lang}")
        assert [line.split().count(MARK) for line in cut] == [2] * 10
        back = [model.decode(line.split()) for line in cut]
        assert back == text_lines(folder / f"test_3.{lang}")
