"""What the tests of scores share."""

import pytest


@pytest.fixture
def write(tmp_path):
    def writer(name, content):
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return writer
