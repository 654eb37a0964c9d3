"""Subwords of parallel text: the model, its dictionary, and every line in its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from fairseq.data import Dictionary
from prepared_text import encode_all, learn, text_lines

from fairseq_floater.data import sentencepiece_subwords
from fairseq_floater.data.parallel_text import LINE_BREAKS, TextDataError
from fairseq_floater.data.sentencepiece_subwords import (
    Segmenter,
    train_subword,
    write_dictionary,
)
from fairseq_floater.data.subwords import encode_split


def test_long_text_is_sampled_evenly(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(zip(text_lines(numbers / "train.en"), text_lines(numbers / "train.de")))
    half, all_of_it = tmp_path / "half.model", tmp_path / "all.model"
    train_subword(iter(pairs[::2]), 200, half, vocab_size=60)
    monkeypatch.setattr(sentencepiece_subwords, "SUBWORD_PAIRS", 200)
    learn(numbers, all_of_it, 60)
    assert all_of_it.read_bytes() == half.read_bytes()


def test_an_impossible_vocabulary_is_told_what_is_possible(raw: Path, tmp_path: Path) -> None:
    for vocab, pattern in ((5_000, r"at most (\d+) "), (10, r"at least (\d+), ")):
        with pytest.raises(TextDataError, match=rf"^`vocab` must be {pattern}.*\.$") as caught:
            encode_all(raw, tmp_path / str(vocab), vocab=vocab)
        limit = re.search(pattern, str(caught.value))
        assert limit is not None
        # The same OUT_DIR takes the right number: nothing was made with the wrong one.
        encode_all(raw, tmp_path / str(vocab), vocab=int(limit[1]))
        assert (tmp_path / str(vocab) / "spm").is_dir()


@pytest.mark.parametrize("line", ["", " ", "\u200b"])
def test_text_of_blank_lines_is_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(
        TextDataError, match=r"must hold characters .*, but its lines are all blank"
    ):
        train_subword(iter([(line,)] * 3), 3, tmp_path / "spm.model", vocab_size=10)


def test_the_dictionary_is_the_models(model: Path, tmp_path: Path) -> None:
    write_dictionary(model, tmp_path / "dict.txt")
    entries = (tmp_path / "dict.txt").read_text().splitlines()
    assert len(entries) == 57  # without <unk>, <s> and </s>
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert dictionary.symbols[4:] == [pieces.id_to_piece(i) for i in range(3, 60)]


def encode(
    model: Path, folder: Path, pairs: list[tuple[str, str]], split: str, **limits: Any
) -> Any:
    for name in ("spm", "raw"):
        (folder / name).mkdir(parents=True)
    folders = (folder / "spm", folder / "raw")
    return encode_split(Segmenter(model), iter(pairs), split, ("en", "de"), folders, **limits)


def test_limits_hold_for_train_and_valid_alone(model: Path, tmp_path: Path) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model)).encode
    short, long = "two", "two, two, two"
    lengths = [len(pieces(text)) for text in (short, long)]
    pairs = [(short, long), ("", short), (long, "\u3000"), (long, long), (short, short)]
    for k, (max_len, max_ratio, dropped, kept) in enumerate(
        [
            (0, 0.0, (2, 0, 0), [0, 3, 4]),
            (lengths[1], lengths[1] / lengths[0], (2, 0, 0), [0, 3, 4]),  # equal is allowed
            (lengths[1] - 1, 0.0, (2, 2, 0), [4]),
            (0, lengths[1] / lengths[0] - 0.01, (2, 0, 1), [3, 4]),
        ]
    ):
        limits = {"max_len": max_len, "max_ratio": max_ratio}
        counts = encode(model, tmp_path / f"valid{k}", pairs, "valid", **limits)
        assert tuple(counts["dropped"].values()) == dropped
        assert (counts["lines"], counts["kept"], counts["empty_kept"]) == (5, len(kept), 0)
        for lang, side in (("en", 0), ("de", 1)):
            wanted = [pairs[i][side] for i in kept]
            assert text_lines(tmp_path / f"valid{k}" / "raw" / f"valid.{lang}") == wanted
        counts = encode(model, tmp_path / f"test{k}", pairs, "test_x", **limits)
        assert (counts["kept"], counts["empty_kept"]) == (5, 2)
        assert sum(counts["dropped"].values()) == 0
        assert len(text_lines(tmp_path / f"test{k}" / "spm" / "test_x.en")) == 5


def test_a_split_without_pairs_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TextDataError, match=r"^`train` has 1 pairs, but none is left: 1 empty, 0 over max-len, 0"
    ):
        encode(model, tmp_path, [("", "eins")], "train")


def test_unknown_text_never_becomes_a_symbol_of_fairseq(tmp_path: Path) -> None:
    # sentencepiece hands on a run of unknown characters as one piece, here `<pad>` itself.
    train_subword(iter([("12 21", "22 11")] * 9), 9, tmp_path / "spm.model", vocab_size=7)
    write_dictionary(tmp_path / "spm.model", tmp_path / "dict.txt")
    encode(tmp_path / "spm.model", tmp_path, [("1 <pad>", "</s> 2 <s>")], "test")
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    for lang, known in (("en", 2), ("de", 2)):
        text = (tmp_path / "spm" / f"test.{lang}").read_text(encoding="utf-8")
        ids = dictionary.encode_line(text, add_if_not_exist=False, append_eos=False).tolist()
        assert not {dictionary.pad(), dictionary.bos(), dictionary.eos()} & set(ids)
        assert len([i for i in ids if i != dictionary.unk()]) >= known


def test_odd_characters_keep_every_line_in_its_place(raw: Path, tmp_path: Path) -> None:
    spaces = [chr(c) for c in range(1, 0x3001) if chr(c).isspace() and chr(c) != "\n"]
    assert set(LINE_BREAKS) < set(spaces)
    odd = [f"x{c}y{c}" for c in spaces] + ["\u200b", "ﬁ ², ½", "😀", "▁", "\t"]
    for split in ("train", "test"):
        for lang in ("en", "de"):
            with (raw / f"{split}.{lang}").open("a", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in odd)
    out = tmp_path / "out"
    encode_all(raw, out, vocab=100)
    counts = json.loads((out / "spm" / "counts.json").read_text())
    assert counts["test"]["kept"] == counts["test"]["lines"] == 30 + len(odd)
    for split, lang in (("train", "en"), ("test", "en"), ("test", "de")):
        for folder in ("spm", "raw")[: 1 + (split == "test")]:
            text = (out / folder / f"{split}.{lang}").read_text(encoding="utf-8")
            assert text.count("\n") == len(text.removesuffix("\n").split("\n"))
            assert len(text.splitlines()) == counts[split]["kept"]  # for any reader
    pieces = {line.rsplit(" ", 1)[0] for line in text_lines(out / "dict.txt")}
    assert all(piece.split() == [piece] for piece in pieces)
    sp = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model"))
    for line, text in zip(text_lines(out / "spm" / "test.en"), text_lines(out / "raw" / "test.en")):
        assert sp.decode(line.split(" ")) == sp.decode(sp.encode(text, out_type=str))
