"""Other people's implementations, which encoders are compared with."""

import importlib
import sys

import pytest


def transformers_module(name):
    """Import ``transformers.models.<name>``, or skip the test.

    transformers imports torchaudio where it finds it, and a torchaudio that was built for another torch
    ends that with an OSError; no attention needs it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchaudio", None)
        pytest.importorskip("transformers")
        return importlib.import_module(f"transformers.models.{name}")
