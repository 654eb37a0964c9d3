"""Fixtures of the tests of scores."""

import json

import numpy as np
import pytest
from scored_split import damaged, generated, sentence, text
from split_text import line, write_sides

from fairseq_floater.evaluation.s2l.options import SplitOptions
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.evaluation.s2l.systems import SystemFiles


@pytest.fixture
def write(tmp_path):
    """Write a file of bytes or text, or of anything else as JSON, and return its path."""

    def writer(name, content):
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return tmp_path / name

    return writer


@pytest.fixture
def raw(tmp_path):
    """Encoded text: line k of a file starts with a word that no other line has."""
    folder = tmp_path / "raw"
    files = {"train": [3, 4, 5, 9, 12, 4], "valid": [2, 11], "test": [5, 8, 16, 25]}
    for name, lengths in files.items():
        start = 1000 * len(name)
        sources = [line(n, start + 100 * k) for k, n in enumerate(lengths)]
        targets = [line(n + 1, start + 50 + 100 * k) for k, n in enumerate(lengths)]
        write_sides(folder, name, sources, targets)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A split whose test set has bins [8, 12), [12, 20), [20, inf) of raw text in word pieces."""
    place = tmp_path_factory.mktemp("s2l")
    generator = np.random.default_rng(3)
    raw = place / "raw"
    raw.mkdir()
    for name, lengths in {
        "train": [4, 5, 6] * 5,
        "valid": [5, 6],
        "test": [5, 6, 7, *generator.integers(8, 30, 120)],
    }.items():
        for lang in ("en", "de"):
            words = [sentence(generator, n) for n in lengths]
            encoded = [" ".join("\u2581" + w for w in line.split()) for line in words]
            (raw / f"{name}.{lang}").write_text("".join(f"{line}\n" for line in encoded))
    options = SplitOptions("en", "de", edges=(8, 12, 20), encoded=True)
    split(raw, place / "split", options)
    return place / "split"


@pytest.fixture
def systems(folder, tmp_path):
    """Two systems of two seeds each, with losses; `good` is clearly better than `bad`."""
    references, sources = text(folder, "test"), text(folder, "test", "en")
    found = []
    for name, share, loss in (("bad", 0.5, -2.0), ("good", 0.1, -1.0)):
        files = SystemFiles(name)
        for seed in (1, 2):
            hypotheses = damaged(references, seed, share)
            files.hypotheses.append(generated(tmp_path / f"{name}{seed}", sources, hypotheses))
            files.losses.append(
                generated(tmp_path / f"{name}{seed}.loss", sources, references, loss * seed)
            )
        found.append(files)
    return found
