import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _little_garbage():
    """Exclude all imports from the garbage collection that a benchmark runs before every turn."""
    gc.freeze()
    yield
    gc.unfreeze()
