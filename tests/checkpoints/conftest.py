"""What several files of warm starts begin with."""

import pytest
from helpers import save_donor


@pytest.fixture()
def donor(tmp_path):
    return save_donor(tmp_path / "donor.pt")
