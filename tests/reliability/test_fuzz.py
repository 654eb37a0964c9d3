"""Spoilt configurations, hypotheses and text: every one is taken, or refused in a sentence."""

import gzip
import json

import pytest
import yaml
from fuzzing import (
    CHANGES,
    EDITS,
    LANGS,
    ODD_BYTES,
    PIECES,
    accepted,
    as_json,
    changed,
    inputs,
    put,
    spoilt,
    unrefused,
)
from hypothesis import example
from hypothesis import strategies as st
from toy import ROOT

from fairseq_floater.data.parallel_text import check_parallel, find_splits, read_lines
from fairseq_floater.evaluation.hypotheses import read_hypotheses, read_tagged
from fairseq_floater.evaluation.lines import TextFile
from fairseq_floater.experiments.stages import STAGES

CONFIGS = [
    yaml.safe_load(path.read_text()) for path in sorted((ROOT / "configs").glob("*_s2l.yaml"))
]
TEXTS = [yaml.safe_dump(config, sort_keys=False).encode() for config in CONFIGS]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


# Configurations.


def stated(config, **values):
    """A configuration with values for ``section__key``."""
    config = json.loads(json.dumps(config))
    for name, value in values.items():
        section, key = name.split("__")
        config[section][key.replace("_", "-")] = value
    return yaml.safe_dump(config).encode()


BAD_YAML = (
    *(b"[" * 3000, b"&a [*a]", b"!!bool x", b"!!timestamp x", b"2001-99-99", b"a: 1\na: 2", b"\0"),
    *(b"a: " + b"9" * 5000, b"\xff\xfe", b""),
    stated(CONFIGS[0], optimisation__lr=None),
    stated(CONFIGS[0], data__tests=["../../x"]),
    stated(CONFIGS[0], data__numbers=5),
    stated(CONFIGS[0], languages__source="en\nname=x"),
    stated(CONFIGS[0], s2l__systems=["--encoder floater -- --x 'y"]),
    stated(CONFIGS[0], shape__arch=[{"x": []}]),
)


def configured(place, data, stage):
    path = put(place / "config.yaml", data)
    return accepted("args", path, stage, names=[path])


@pytest.mark.parametrize("data", BAD_YAML, ids=range(len(BAD_YAML)))
def test_a_configuration_that_is_none(tmp_path, data):
    assert not configured(tmp_path, data, "finetune")


@inputs(
    "configurations, bytes",
    45,
    which=st.integers(0, len(TEXTS) - 1),
    edits=EDITS,
    stage=st.sampled_from(tuple(STAGES)),
)
def test_configurations_with_spoilt_bytes(place, which, edits, stage):
    return configured(place, spoilt(TEXTS[which], edits), stage)


@inputs("configurations, anything", 20, data=st.binary(max_size=60) | st.text(max_size=60))
def test_files_that_are_no_configuration(place, data):
    return configured(place, data if isinstance(data, bytes) else data.encode(), "donor")


@inputs(
    "configurations, values",
    45,
    which=st.integers(0, len(CONFIGS) - 1),
    changes=CHANGES,
    stage=st.sampled_from(tuple(STAGES)),
)
def test_configurations_with_odd_values(place, which, changes, stage):
    # JSON is YAML, but for infinities, and read as fast.
    return configured(place, as_json(changed(CONFIGS[which], changes)), stage)


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
    assert not list(place.glob(".*part*"))
    assert not taken or (out / "split.json").is_file()
    return taken
