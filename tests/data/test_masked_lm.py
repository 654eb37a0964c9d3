"""Text for masked language modelling: every line in its place, faults in a sentence, all or nothing."""

import json

import pytest
from bpe_toy import TEXT, write_gpt2
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fuzzing import call
from toy import fairseq, floater, parameters

from fairseq_floater.data.understanding import binarise
from fairseq_floater.data.understanding.subwords import load_subwords

WIKITEXT = " = Heading = \n \n The third of four is three . \n We see @-@ it . \n \n"
WIKITEXT += " = = Part = = \n \n"


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    (folder / "train.txt").write_text((TEXT + "\n\n") * 10)
    (folder / "valid.txt").write_text(WIKITEXT)
    write_gpt2(folder / "bpe")
    return folder


def prepare(raw, out, *options, by=floater):
    texts = ("--train", raw / "train.txt", "--valid", raw / "valid.txt", "--workers", 1)
    return by("mlm", "prepare", out, *texts, *options)


@pytest.fixture(scope="module")
def prepared(raw, tmp_path_factory):
    out = tmp_path_factory.mktemp("mlm") / "data"
    prepare(raw, out, "--bpe", "gpt2", "--bpe-dir", raw / "bpe")
    return out


def decoded(folder, split):
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    return [dictionary.string(line) for line in MMapIndexedDataset(str(folder / split))]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_lines_are_stripped_and_empty_ones_stay(prepared):
    subwords = load_subwords(prepared / "bpe")
    lines = [line.strip() for line in WIKITEXT.split("\n")[:-1]]
    expected = [" ".join(subwords.encode(line)) for line in lines]
    found = decoded(prepared, "valid")
    known = {line.split()[0] for line in (prepared / "dict.txt").read_text().splitlines()}
    for want, have in zip(expected, found, strict=True):
        assert have == " ".join(w if w in known else "<unk>" for w in want.split())
    assert found[1] == "" and found[0]
    counts = summary(prepared)["splits"]["valid"]
    unknown = " ".join(found).split().count("<unk>")
    lengths = [len(line.split()) for line in expected]
    expected = {"documents": 3, "lines": 7, "words": 3 + 7 + 5 + 5, "subwords": sum(lengths)}
    assert counts == {**expected, "longest": max(lengths), "unknown": unknown}


def test_the_dictionary_is_of_the_training_text_and_has_no_mask(prepared):
    words = [line.split()[0] for line in (prepared / "dict.txt").read_text().splitlines()]
    subwords = load_subwords(prepared / "bpe")
    trained = {w for line in TEXT.split("\n") for w in subwords.encode(line)}
    assert trained == {word for word in words if not word.startswith("madeupword")}
    assert summary(prepared)["splits"]["train"]["unknown"] == 0


def test_later_data_get_the_same_subwords_and_dictionary(raw, prepared, tmp_path):
    prepare(raw, tmp_path / "again", "--like", prepared)
    for name in ("dict.txt", "train.bin", "valid.idx", "bpe/encoder.json", "bpe/vocab.bpe"):
        assert (tmp_path / "again" / name).read_bytes() == (prepared / name).read_bytes()


def test_fairseq_trains_on_it_and_mask_follows_the_dictionary(prepared, tmp_path):
    shape = ("--encoder-layers", 1, "--encoder-embed-dim", 8, "--encoder-ffn-embed-dim", 8)
    options = ("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "roberta", *shape)
    options += ("--encoder-attention-heads", 1, "--tokens-per-sample", 99, "--max-positions", 99)
    options += ("--sample-break-mode", "none", "--batch-size", 4, "--max-update", 1, "--cpu")
    options += ("--required-batch-size-multiple", 1)
    options += ("--num-workers", 0, "--lr", 0.1, "--optimizer", "adam", "--no-epoch-checkpoints")
    fairseq("train", prepared, *options, "--save-dir", tmp_path)
    name = "encoder.sentence_encoder.embed_tokens.weight"
    rows = parameters(tmp_path / "checkpoint_last.pt")[name]
    lines = (prepared / "dict.txt").read_text().count("\n")
    assert rows.shape == (lines + 5, 8)  # four symbols before, <mask> after


def test_sentencepiece_is_learned_or_given(raw, tmp_path):
    prepare(raw, tmp_path / "a", "--bpe", "sentencepiece", "--vocab", 60)
    model = tmp_path / "a" / "bpe" / "sentencepiece.model"
    for given in (("--model", model), ("--bpe-dir", model.parent)):
        out = tmp_path / given[0]
        assert prepare(raw, out, "--bpe", "sentencepiece", *given, by=call)[0] == 0
        assert (tmp_path / "a/train.bin").read_bytes() == (out / "train.bin").read_bytes()
    assert summary(tmp_path / "a")["splits"]["train"]["unknown"] == 0
    assert (tmp_path / "a/dict.txt").read_text().count("\n") == 57  # without <unk>, <s>, </s>
    assert "skipped" in prepare(raw, tmp_path / "a", "--bpe", "sentencepiece", "--vocab", 60).stderr
    prepare(raw, tmp_path / "a", "--bpe", "sentencepiece", "--vocab", 61, "--force")
    assert summary(tmp_path / "a")["parameters"]["vocab"] == 61


def test_several_processes_write_the_same_data(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(binarise, "_WORTH_PROCESSES", 0)
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in decoded(prepared, "train")))
    for workers in (1, 3):
        prefix = tmp_path / str(workers) / "train"
        found = binarise.binarise(text, prepared / "dict.txt", prefix, workers=workers)
        assert found == (30, summary(prepared)["splits"]["train"]["subwords"], 0)
    for name in ("train.bin", "train.idx"):
        folders = (tmp_path / "1", tmp_path / "3", prepared)
        assert len({(folder / name).read_bytes() for folder in folders}) == 1


def test_wikitext_is_counted_as_published(tmp_path, prepared):
    folder = tmp_path / "wikitext-103-raw"
    folder.mkdir()
    (folder / "wiki.train.raw").write_text(WIKITEXT)
    words = ("--train", folder / "wiki.train.raw", "--like", prepared)
    out = floater("mlm", "prepare", tmp_path / "out", *words)
    # 20 words and 7 ends of lines
    assert "wiki.train.raw has 27 words" in out.stderr
    assert "103,227,021 are published" in out.stderr
    assert len(summary(tmp_path / "out")["warnings"]) == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "Give --like or --bpe"),
        (("--bpe", "gpt2"), 2, "needs --bpe-dir"),
        (("--bpe", "sentencepiece"), 2, "exactly one of --vocab, --model"),
        (("--like", "prepared", "--vocab", 60), 2, "give it alone"),
        (("--like", "raw"), 1, "dict.txt, is missing"),
        (("--bpe", "gpt2", "--bpe-dir", "raw"), 1, "encoder.json is missing"),
        (("--bpe", "gpt2", "--bpe-dir", "raw/bpe", "--dict", "other.txt"), 1, "of the same BPE"),
        (("--bpe", "sentencepiece", "--vocab", 60, "--train", "nothing"), 1, "nothing is missing"),
        (("--bpe", "sentencepiece", "--vocab", 60, "--valid", "empty"), 1, "empty is empty"),
        (("--bpe", "sentencepiece", "--vocab", 9000), 1, "`vocab` must be at most"),
    ],
)
def test_bad_input_leaves_nothing(options, code, message, raw, prepared, tmp_path):
    (tmp_path / "other.txt").write_text("a 1\nb 1\n")
    (tmp_path / "empty").touch()
    places = {"prepared": prepared, "raw": raw, "raw/bpe": raw / "bpe"}
    places |= {name: tmp_path / name for name in ("other.txt", "nothing", "empty")}
    words = [places.get(word, word) for word in options]
    found, _, error = prepare(raw, tmp_path / "out", *words, by=call)
    assert found == code and message in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other.txt"]
