"""Spoilt hypotheses and text: every one is taken, or refused in a sentence."""

import gzip
import json

import pytest
from fuzzing import (
    EDITS,
    LANGS,
    ODD_BYTES,
    PIECES,
    accepted,
    inputs,
    put,
    spoilt,
    unrefused,
)
from hypothesis import example
from hypothesis import strategies as st

from fairseq_floater.data.parallel_text import check_parallel, find_splits, read_lines
from fairseq_floater.evaluation.hypotheses import read_hypotheses, read_tagged
from fairseq_floater.evaluation.lines import TextFile


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


# What is scored.

REFERENCES = "Das ist ein kleiner Satz.\nUnd noch einer, etwas länger.\nEnde\n".encode()
GENERATED = "".join(
    f"S-{i}\tthat is {i}\nT-{i}\tx\nH-{i}\t-0.{i}\t{line}\nD-{i}\t-0.{i}\t{line}\nP-{i}\t-1 -2 -0.5\n"
    for i, line in zip((2, 0, 1), ("Ende", "Das ist ein Satz.", "Und einer, länger."))
).encode()
PLAIN = b"Das ist ein Satz.\nUnd einer.\nAus\n"
SOURCES = st.sampled_from((GENERATED, GENERATED, PLAIN))


@inputs(
    "hypotheses, read",
    200,
    *(example(source=GENERATED, edits=[("insert", 0, 0, odd)], bpe=None) for odd in ODD_BYTES),
    source=SOURCES,
    edits=EDITS,
    bpe=st.sampled_from((None, "sentencepiece", "subword_nmt")),
)
def test_spoilt_hypotheses(place, source, edits, bpe):
    path = put(place / "hypotheses", spoilt(source, edits))
    for tag in "SP":
        unrefused(lambda tag=tag: list(read_tagged(TextFile(path), tag)), names=[path])
    return unrefused(lambda: list(read_hypotheses(path, remove_bpe=bpe)), names=[path])


@inputs("floater score", 45, source=SOURCES, edits=EDITS, references=st.booleans())
def test_scoring_spoilt_files(place, source, edits, references):
    spoil = spoilt(REFERENCES if references else source, edits)
    raw = put(place / "references", spoil if references else REFERENCES)
    path = put(place / "hypotheses", source if references else spoil)
    result = place / "scores" / "scores.json"
    words = ("--references", raw, "--target-lang", "de", "--bootstrap", "0", "--json", result)
    taken = accepted("score", path, *words, names=[path, raw])
    assert taken == result.is_file()
    if taken:
        assert json.loads(result.read_text())["sentences"] > 0
        result.unlink()
    assert not list(place.glob("scores/*"))
    return taken


# Parallel text.


@inputs(
    "parallel text, read",
    150,
    edits=EDITS,
    zipped=st.sampled_from((None, "whole", "spoilt")),
    side=st.sampled_from(LANGS),
)
def test_spoilt_text(place, edits, zipped, side):
    raw = place / "raw"
    for path in raw.glob("*"):
        path.unlink()
    for name in ("train", "valid", "test"):
        for lang in LANGS:
            put(raw / f"{name}.{lang}", PLAIN)
    path = raw / f"train.{side}"
    if zipped is None:
        put(path, spoilt(PLAIN, edits))
    else:
        path.unlink()
        whole = gzip.compress(PLAIN if zipped == "spoilt" else spoilt(PLAIN, edits), mtime=0)
        path = put(
            path.with_name(f"{path.name}.gz"), spoilt(whole, edits) if zipped == "spoilt" else whole
        )
    unrefused(lambda: list(read_lines(path)), names=[path])
    return unrefused(lambda: check_parallel(raw, *LANGS, find_splits(raw, *LANGS)), names=[raw])


@inputs("floater s2l split", 8, edits=EDITS, name=st.sampled_from(("train", "valid", "test")))
def test_splitting_spoilt_text(place, edits, name):
    raw, out = place / "pieces", place / "split"
    for split_name in ("train", "valid", "test"):
        for lang in LANGS:
            put(raw / f"{split_name}.{lang}", f"{PIECES}\u2581{split_name}\n".encode())
    put(raw / f"{name}.en", spoilt(PIECES.encode(), edits))
    words = ("--src", "en", "--tgt", "de", "--encoded", "--threshold", "5", "--edges", "5")
    taken = accepted("s2l", "split", raw, out, *words, "--force", names=[raw, "pair", "bin"])
    # A refused split leaves what was there; no part of one is ever left.
    assert not list(place.glob(".*"))
    assert not taken or (out / "split.json").is_file()
    return taken
