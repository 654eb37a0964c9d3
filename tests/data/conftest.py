"""What the tests of prepared text share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from prepared_text import learn

from fairseq_floater.data.number_words import write_numbers


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
