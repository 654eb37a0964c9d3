"""Spoilt splits, scores and records of the tools' own: every one is taken, or refused in a sentence."""

import json

import pytest
from fuzzing import (
    CHANGES,
    EDITS,
    LANGS,
    PIECES,
    accepted,
    as_json,
    changed,
    inputs,
    put,
    spoilt,
    unrefused,
)
from hypothesis import strategies as st

from fairseq_floater.data import binarised, number_words
from fairseq_floater.data.wmt14 import recipe as wmt14
from fairseq_floater.evaluation.s2l.held_out import read_origins
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.evaluation.s2l.split_options import SplitOptions
from fairseq_floater.evaluation.s2l.split_report import SplitReport
from fairseq_floater.experiments import run_folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


# A short-to-long folder, and hypotheses of it.


@pytest.fixture(scope="module")
def s2l(place):
    raw, folder = place / "s2l raw", place / "s2l"
    for name in ("train", "valid", "test"):
        for lang in LANGS:
            put(raw / f"{name}.{lang}", f"{PIECES}\u2581{name}\n".encode())
    split(raw, folder, SplitOptions("en", "de", edges=(5,), encoded=True))
    sources = (folder / "test.en").read_text().splitlines()
    lines = (
        f"S-{i}\t{source}\nT-{i}\tx\nH-{i}\t-1\tx\nD-{i}\t-1\tabab c d\nP-{i}\t-1 -1\n"
        for i, source in enumerate(sources)
    )
    put(folder / "system.txt", "".join(lines).encode())
    return folder


def scored(s2l, name, data):
    """Whether a split of which one file has other bytes is scored."""
    good = (s2l / name).read_bytes()
    put(s2l / name, data)
    system = f"--hypotheses=a={s2l / 'system.txt'}"
    words = (s2l, system, "--baseline", "a", "--bootstrap", "0", "--max-len-a", "1")
    try:
        return accepted("s2l", "score", *words, "--max-len-b", "2", names=[s2l])
    finally:
        put(s2l / name, good)


@inputs(
    "floater s2l score",
    30,
    edits=EDITS,
    name=st.sampled_from(("test.tsv", "split.json", "test.de", "test.en", "system.txt")),
)
def test_scoring_a_spoilt_split(s2l, edits, name):
    return scored(s2l, name, spoilt((s2l / name).read_bytes(), edits))


@inputs("floater s2l score, values", 25, changes=CHANGES)
def test_scoring_a_split_whose_record_has_odd_values(s2l, changes):
    record = json.loads((s2l / "split.json").read_text())
    return scored(s2l, "split.json", as_json(changed(record, changes)))


@inputs("test.tsv and split.json, read", 75, edits=EDITS, changes=CHANGES)
def test_reading_a_spoilt_split(s2l, edits, changes):
    folder = s2l / "spoilt"
    path = put(folder / "test.tsv", spoilt((s2l / "test.tsv").read_bytes(), edits))
    rows = unrefused(lambda: list(read_origins(path)), names=[path])
    record = json.loads((s2l / "split.json").read_text())
    path = put(folder / "split.json", as_json(changed(record, changes)))
    return rows & unrefused(lambda: SplitReport.read(folder).format_text(), names=[path])


# Records of the preparation.

DOWNLOADED = {"a.tgz": {"sha256": "0", "size": 3, "url": "u", "published": False, "mtime_ns": 1}}
SUMMARY = {
    "parameters": {"src": "en", "tgt": "de", "bpe": "sentencepiece", "vocab": 300},
    "splits": {"train": {"lines": 5, "kept": 4, "dropped": {"empty": 1}, "subwords": {"en": 9}}},
    **{"pair": "en-de", "rehearsal": False, "b": {"c": 5}},
}
MANIFEST = {
    "parameters": {"src": "en", "tgt": "de", "bpe": "sentencepiece", "vocab": 300},
    "inputs": {"train.en": "0"},
    **{"files": {"train.en": {"lines": 3, "sha256": "0"}}, "kept": 3},
}


@inputs(
    "records of the preparation",
    50,
    edits=EDITS,
    changes=CHANGES,
    bytewise=st.booleans(),
    record=st.sampled_from((SUMMARY, MANIFEST, DOWNLOADED)),
)
def test_spoilt_records(place, edits, changes, bytewise, record):
    folder = place / "records"
    data = as_json(record) if bytewise else as_json(changed(record, changes))
    data = spoilt(data, edits) if bytewise else data
    names = (
        "prepare.json",
        "summary.json",
        "numbers.json",
        "wmt14.json",
        "corpus.json",
        "tests.json",
    )
    for name in (*names, "spm/counts.json", "corpus/counts.json", "dict.txt"):
        put(folder / name, data)
    taken = [
        unrefused(binarised.finish, folder, names=[folder]),
        unrefused(number_words._read_manifest, folder),
        unrefused(wmt14.report, "en-de", folder, names=[folder]),
    ]
    return any(taken[2:])


LOG = b"""x | INFO | valid |  | valid on 'valid' subset | loss 3.25 | ppl 9.5 | bsz 12
x | INFO | valid |  | valid on 'valid' subset | loss 3.15 | ppl 9.1 | bsz 12 | num_updates 7
"""


@inputs("logs of fairseq-validate", 40, edits=EDITS)
def test_spoilt_logs(place, edits):
    log, result = put(place / "before.log", spoilt(LOG, edits)), place / "before.json"
    taken = unrefused(run_folder.write_validation, log, result, names=[log])
    assert taken == result.is_file()
    result.unlink(missing_ok=True)
    return taken
