"""Fixtures of the tests of results."""

import shutil

import pytest
from compared_runs import STOPS, labelled, make_run
from helpers import save_model

from fairseq_floater.cli import main
from fairseq_floater.evaluation.s2l.options import SplitOptions
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.results import position_figure


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """Two systems under two seeds, split and scored by the real tools."""
    place = tmp_path_factory.mktemp("page")
    raw, work = place / "raw", place / "my work"
    raw.mkdir()
    for name, lengths in {"train": [5] * 9, "valid": [5], "test": [5, 6, *range(8, 28)]}.items():
        for lang in ("en", "de"):
            lines = [
                " ".join(f"\u2581{name}{lang}{n}x{i}" for i in range(length)) + "\n"
                for n, length in enumerate(lengths)
            ]
            (raw / f"{name}.{lang}").write_text("".join(lines))
    split(raw, work / "split", SplitOptions("en", "de", edges=(8, 16), encoded=True))
    argv = []
    for name, seed in STOPS:
        folder = work / f"seed-{seed}" / name
        make_run(folder, name, seed, work / "split")
        for hypotheses, losses, test in (
            ("hypotheses", "losses", "test"),
            ("short", "short-losses", "test_short"),
        ):
            argv += [f"--{hypotheses}", f"{name}={folder}/generate.{test}.txt"]
            argv += [f"--{losses}", f"{name}={folder}/losses.{test}.txt"]
    argv = labelled("s2l", "score", work / "split", *argv, "--json", work / "s2l.json")
    assert main(argv) == 0
    save_model(work / "seed-1" / "rope-b" / "average.pt", "rope", "all", "attention")
    return work


@pytest.fixture
def copy(work, tmp_path):
    """A copy of the comparison that a test may change."""
    return shutil.copytree(work, tmp_path / "work")


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the drawing of dozens of panels in tests of the measures."""
    monkeypatch.setattr(position_figure, "draw", lambda tables, output, **words: None)
