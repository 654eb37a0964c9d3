import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _little_garbage():
    """A benchmark collects garbage before every turn: not all that the tests have imported."""
    gc.freeze()
    yield
    gc.unfreeze()
