"""Moses tokens and subword-nmt: the preprocessing of the published WMT14 results."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.data import Dictionary, encoders
from fairseq.data.indexed_dataset import MMapIndexedDataset
from toy import run

from fairseq_floater.data.moses_subwords import (
    MosesSegmenter,
    MosesTokens,
    train_codes,
    write_counted_dictionary,
)
from fairseq_floater.data.parallel_text import TextDataError

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_text.sh"
LANGS = ("en", "de")
PAIRS = [
    ("forty-two, seventy-three", "zweiundvierzig, dreiundsiebzig"),
    ("seventy-two | forty-three", "zweiundsiebzig | dreiundvierzig"),
]


@pytest.fixture(scope="module")
def prepared(numbers, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "my data"
    words = ("--src", "en", "--tgt", "de", "--vocab", 40, "--bpe", "subword-nmt", "--workers", 2)
    return out, run(["bash", SCRIPT, numbers, out, *words])


def test_training_text_is_normalised_and_test_text_is_not():
    tokens = MosesTokens("en")
    training, test = tokens.training("“well-known”\u200b it’s"), tokens.test("“well-known” it’s")
    assert " ".join(training) == "&quot; well @-@ known &quot; it &apos;s"
    assert " ".join(test) == "“ well @-@ known ” it &apos;s"


def test_no_token_is_a_symbol_of_fairseq_or_breaks_a_line():
    tokens = MosesTokens("de")
    for line in ("<s> </s> <pad> <unk> a\u2028b\x0bc", "\u00a0a\u3000b  c "):
        for found in (tokens.training(line), tokens.test(line)):
            assert found
            assert not {"<s>", "</s>", "<pad>", "<unk>"} & set(found)
            assert all(len(token.split()) == 1 for token in found)


def test_workers_change_nothing(tmp_path):
    for workers in (1, 3):
        path = tmp_path / f"codes{workers}"
        train_codes(iter(PAIRS * 40), LANGS, path, merges=30, workers=workers)
    assert (tmp_path / "codes1").read_bytes() == (tmp_path / "codes3").read_bytes()
    found = []
    for workers in (1, 3):
        segmenter = MosesSegmenter(tmp_path / "codes1", LANGS, workers)
        found.append(list(segmenter.pieces(PAIRS * 40)))
        segmenter.close()
    assert found[0] == found[1]
    assert len(found[0]) == 80
    assert any(piece.endswith("@@") for piece in found[0][0][1])


def test_codes_do_not_depend_on_the_order_of_the_text(tmp_path):
    train_codes(iter(PAIRS), LANGS, tmp_path / "a", merges=30)
    train_codes(iter(PAIRS[::-1]), LANGS, tmp_path / "b", merges=30)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_holds_no_codes_is_refused(tmp_path):
    (tmp_path / "codes").write_text("a b\n")
    with pytest.raises(TextDataError, match=r"codes is not a file of subword-nmt codes\.$"):
        MosesSegmenter(tmp_path / "codes", LANGS)
    with pytest.raises(TextDataError, match=r"^subword-nmt found no pair"):
        train_codes(iter([("", "")]), LANGS, tmp_path / "none", merges=5)
    assert not (tmp_path / "none").exists()


def test_the_dictionary_counts_the_text(tmp_path):
    (tmp_path / "text").write_text("b@@ a a\nb@@ c\n")
    write_counted_dictionary([tmp_path / "text"], tmp_path / "dict.txt")
    assert len((tmp_path / "dict.txt").read_text().splitlines()) % 4 == 0
    lines = (tmp_path / "dict.txt").read_text().splitlines()
    assert lines[:3] == ["a 2", "b@@ 2", "c 1"]
    assert all(line.startswith("madeupword") for line in lines[3:])


def test_the_whole_script(prepared):
    out, _ = prepared
    folders = {path.name for path in out.iterdir() if path.is_dir()}
    assert folders == {"bin", "raw", "bpe"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["parameters"]["bpe"] == "subword-nmt"
    assert set(summary["sha256"]) == {"bpe.codes", "dict.txt"}
    assert set(summary) >= {"sacremoses", "subword-nmt"}
    dictionary = Dictionary.load(str(out / "bin" / "dict.de.txt"))
    unknown = 0
    for split, counts in summary["splits"].items():
        for lang in LANGS:
            data = MMapIndexedDataset(str(out / "bin" / f"{counts['subset']}.en-de.{lang}"))
            text = (out / "bpe" / f"{split}.{lang}").read_text().splitlines()
            assert len(data) == len(text) == counts["kept"]
            unknown += sum(int((ids == dictionary.unk()).sum()) for ids in data)
            if split == "train":
                assert [dictionary.string(ids) for ids in data] == text
    assert unknown == 0


def test_fairseqs_own_decoders_give_the_raw_text_back(prepared):
    out, _ = prepared
    options = {"moses_no_dash_splits": False, "moses_no_escape": False, "tokenizer": "moses"}
    moses = encoders.build_tokenizer(Namespace(source_lang="en", target_lang="de", **options))
    text = (out / "bpe" / "test.de").read_text().splitlines()
    joined = [(line + " ").replace("@@ ", "").rstrip() for line in text]
    raw = (out / "raw" / "test.de").read_text().splitlines()
    assert [moses.decode(line) for line in joined] == raw


def test_a_ready_model_is_for_sentencepiece_alone(numbers, tmp_path):
    words = ("--src", "en", "--tgt", "de", "--spm-model", tmp_path / "m", "--bpe", "subword-nmt")
    done = run(["bash", SCRIPT, numbers, tmp_path / "out", *words], code=2)
    assert "--spm-model needs sentencepiece" in done.stderr
    done = run(["bash", SCRIPT, numbers, tmp_path / "out", *words[:-1], "bpe"], code=2)
    assert "argument --bpe: invalid choice: 'bpe'" in done.stderr
