"""Reference implementations that encoders are compared with."""

import importlib
import sys

import pytest


def transformers_module(name):
    """Import ``transformers.models.<name>``, or skip the test.

    transformers imports torchaudio if it is installed. A torchaudio that was built for another torch raises
    an OSError, so this function hides it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchaudio", None)
        pytest.importorskip("transformers")
        return importlib.import_module(f"transformers.models.{name}")
