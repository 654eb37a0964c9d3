"""Fixtures of the tests of prepared text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bpe_toy import write_gpt2
from prepared_text import learn

from fairseq_floater.data.number_words import write_numbers
from fairseq_floater.data.understanding.binarise import Vocabulary


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    write_numbers(folder, train=400, valid=20, test=30, test_long=10, max_number=99)
    return folder


@pytest.fixture
def raw(numbers: Path, tmp_path: Path) -> Path:
    """A copy of the corpus that a test may spoil."""
    return Path(shutil.copytree(numbers, tmp_path / "raw"))


@pytest.fixture(scope="module")
def model(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "spm.model"
    learn(numbers, path, 60)
    return path


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """GPT-2's BPE with few merges, and a dictionary that has all of its subwords."""
    folder = write_gpt2(tmp_path_factory.mktemp("gpt2") / "bpe")
    numbers = json.loads((folder / "encoder.json").read_text()).values()
    (folder / "dict.txt").write_text("".join(f"{number} 1\n" for number in sorted(numbers)))
    return Vocabulary.chosen(bpe="gpt2", bpe_dir=folder)
