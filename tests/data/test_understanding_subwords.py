"""Subwords with their characters: the same as fairseq's own GPT-2 BPE, and spans that cover the text."""

import json
import random
import re

import pytest
from bpe_toy import TEXT, write_gpt2
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.sentencepiece_subwords import train_subword
from fairseq_floater.data.understanding.subwords import (
    Gpt2Subwords,
    SentencepieceSubwords,
    load_subwords,
)

AWKWARD = ["", " ", "  two  blanks  ", "isn't they've I'm he'd we'll 'tis it's", "tab\tand\nline"]
AWKWARD += ["no\u00a0break \u3000wide", "\u200bzero\ufeff", "é e\u0301 ½ ² ٣ Ⅷ ① ǅ", "漢字かな"]
AWKWARD += ["😀 👨\u200d👩 🇩🇪", "\x1c\x1d\x1e\x1f\x85 \u2028", "a\x00b", "<s> <mask> </s>"]
AWKWARD += ["3.14,15-16_17", '"[(…)]" — ’s']
ALPHABET = "  \t\x1f\x85\u00a0\u2028\u200b\u3000aTh'’setrnd é½²٣漢😀🇩.,_-\"\n\u0301"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return write_gpt2(tmp_path_factory.mktemp("gpt2") / "bpe")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    lines = [(line,) for line in TEXT.split("\n") * 20]
    train_subword(iter(lines), len(lines), folder / "sentencepiece.model", vocab_size=80)
    return folder


def test_gpt2_subwords_are_those_of_fairseq(gpt2):
    ours = Gpt2Subwords(gpt2)
    theirs = get_encoder(gpt2 / "encoder.json", gpt2 / "vocab.bpe")
    draw = random.Random(1)
    texts = [*AWKWARD, TEXT, *("".join(draw.choices(ALPHABET, k=12)) for _ in range(500))]
    expected = [list(map(str, theirs.encode(text))) for text in texts]
    assert ours.encode_lines(texts) == expected
    assert [ours.encode_with_offsets(text).subwords for text in texts] == expected
    assert len(ours.encode(TEXT)) < len(TEXT) / 1.5  # merges were used


@pytest.mark.parametrize("kind", [Gpt2Subwords, SentencepieceSubwords])
def test_spans_follow_each_other_and_leave_out_white_space_alone(kind, gpt2, pieces):
    subwords = kind(gpt2 if kind is Gpt2Subwords else pieces)
    draw = random.Random(2)
    words = ["the", "third,", "é", "漢字", "😀", "isn't", "n½", "\u00a0", "  "]
    for text in [*AWKWARD, *(" ".join(draw.choices(words, k=8)) for _ in range(200))]:
        if "\x00" in text or "\x1f" in text or "\u200b" in text:
            continue  # sentencepiece drops these characters
        found, spans = subwords.encode_with_offsets(text)
        assert found == subwords.encode(text)
        assert len(found) == len(spans)
        covered = set()
        for begin, end in spans:
            assert text[begin:end] == text[begin:end].strip()
            covered.update(range(begin, end))
        assert all(text[k].isspace() for k in range(len(text)) if k not in covered)
        assert [b for b, _ in spans] == sorted(b for b, _ in spans)


def test_a_span_is_the_text_of_its_subword(pieces, gpt2):
    text = "  The third,  isn't 😀 it?"
    for subwords in (SentencepieceSubwords(pieces), Gpt2Subwords(gpt2)):
        spans = subwords.encode_with_offsets(text).spans
        joined = "".join(text[b:e] for b, e in dict.fromkeys(spans))
        assert joined == re.sub(r"\s", "", text)


def test_a_symbol_of_fairseq_is_spelt_out(tmp_path):
    model = tmp_path / "sentencepiece.model"
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the <mask> of a\xa0name"] * 20),
        normalization_rule_name="identity",
        model_writer=model.open("wb"),
        vocab_size=40,
        hard_vocab_limit=False,
        user_defined_symbols=["<mask>"],
        minloglevel=2,
    )
    found = SentencepieceSubwords(tmp_path).encode_with_offsets("a <mask>")
    assert found.subwords[-6:] == list("<mask>")
    assert found.spans[-6:] == [(2, 8)] * 6
    # fairseq would drop a subword that is a no-break space.
    for text in ("a <mask>", "a\xa0<mask>"):
        assert found.subwords == SentencepieceSubwords(tmp_path).encode(text)
    assert found == SentencepieceSubwords(tmp_path).encode_with_offsets("a\xa0<mask>")


def test_stored_subwords_are_read_back(gpt2, pieces, tmp_path):
    for source in (gpt2, pieces):
        folder = tmp_path / source.name
        load_subwords(source).store(folder)
        again = load_subwords(folder)
        assert type(again) is type(load_subwords(source))
        assert again.encode(TEXT) == load_subwords(source).encode(TEXT)


def test_files_that_are_no_subwords_are_refused(gpt2, tmp_path):
    with pytest.raises(TextDataError, match="holds no subwords"):
        load_subwords(tmp_path)
    with pytest.raises(TextDataError, match=r"encoder\.json, a file of --bpe gpt2, is missing"):
        Gpt2Subwords(tmp_path)
    numbers = json.loads((gpt2 / "encoder.json").read_text())
    (tmp_path / "vocab.bpe").write_text("#version\nqq zz\n")
    (tmp_path / "encoder.json").write_text(json.dumps(numbers))
    with pytest.raises(TextDataError, match="holds no GPT-2 BPE"):
        Gpt2Subwords(tmp_path)
    del numbers["a"]
    (tmp_path / "encoder.json").write_text(json.dumps(numbers))
    with pytest.raises(TextDataError, match="a number for each of the 256 bytes"):
        Gpt2Subwords(tmp_path)
    (tmp_path / "sentencepiece.model").write_text("no model")
    with pytest.raises(TextDataError, match="not a readable sentencepiece model"):
        SentencepieceSubwords(tmp_path)
