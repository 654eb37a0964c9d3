"""Spoilt test sets and hypotheses of short to long: every one is taken, or refused in a sentence."""

import pytest
from fuzzing import (
    EDITS,
    LANGS,
    PIECES,
    accepted,
    inputs,
    put,
    spoilt,
)
from hypothesis import strategies as st

from fairseq_floater.evaluation.s2l.options import SplitOptions
from fairseq_floater.evaluation.s2l.split import split


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
    name=st.sampled_from(("test.tsv", "test.de", "test.en", "system.txt")),
)
def test_scoring_a_spoilt_split(s2l, edits, name):
    return scored(s2l, name, spoilt((s2l / name).read_bytes(), edits))
