"""What several files of warm starts and imports begin with."""

import shutil

import hugging_face
import pytest
from helpers import save_donor


@pytest.fixture()
def donor(tmp_path):
    return save_donor(tmp_path / "donor.pt")


@pytest.fixture()
def stored(tmp_path):
    """A RoBERTa as transformers saved it, and logits that transformers computed."""
    shutil.unpack_archive(hugging_face.STORED, tmp_path)
    return tmp_path / "hugging_face"
