"""Fixtures that several files of warm starts and imports begin with."""

import shutil

import hugging_face
import pytest
from helpers import TINY, save_donor

from fairseq_floater.checkpoints.warm_start import warm_start


@pytest.fixture()
def donor(tmp_path):
    return save_donor(tmp_path / "donor.pt")


@pytest.fixture()
def start(tmp_path):
    """Start a tiny model with ``options`` from a donor; return the report and the checkpoint."""

    def started(donor, options="", arch=TINY, **how):
        path, words = tmp_path / "out.pt", options.split()
        return warm_start(donor, path, arch=arch, model_options=words, force=True, **how), path

    return started


@pytest.fixture()
def stored(tmp_path):
    """A RoBERTa as transformers saved it, and logits that transformers computed."""
    shutil.unpack_archive(hugging_face.STORED, tmp_path)
    return tmp_path / "hugging_face"
