"""One thread a process: small matrices gain nothing from more, and sums keep their order."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
