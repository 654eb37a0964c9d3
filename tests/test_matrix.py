"""scripts/matrix.sh with Pythons that only pretend: what it makes of what pip says."""

import os
import subprocess
import time

import pytest
from toy import ROOT

# Answers as a Python does that makes environments of itself; PIP is what its pip does.
PYTHON = """#!/bin/bash
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") {pip} ;;
"-c import ensurepip"*) echo "$0" ;;
*) exit 1 ;;
esac
"""
ANNOUNCES = 'echo "  Downloading torch-9.whl.metadata (30 kB)"; '
LARGE = ANNOUNCES + 'echo "  Downloading torch-9.whl (800.1 MB)"; exec sleep 60'
BROKEN = 'echo "no such package" >&2; exit 1'


@pytest.fixture()
def matrix(tmp_path):
    def run(*words, **pips):
        for version, pip in pips.items():
            python = tmp_path / version.replace("_", ".")
            python.write_text(PYTHON.format(pip=pip))
            python.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", ROOT / "scripts" / "matrix.sh", "--work", tmp_path / "work", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50)

    return run


def test_a_row_that_would_fetch_too_much_is_not_run(matrix):
    start = time.monotonic()
    done = matrix("--only", "python3.12-*", python3_12=LARGE)
    assert done.returncode == 0, done.stderr
    assert "not run: pip would fetch more than 300 MB (torch-9.whl has 800)" in done.stdout
    assert time.monotonic() - start < 45  # pip was ended


def test_a_row_that_fails_does_not_stop_the_others(matrix, tmp_path):
    done = matrix("--only", "python3.10-*,python3.12-*", python3_10=LARGE, python3_12=BROKEN)
    assert done.returncode == 1
    assert "Failed: python3.12-torch2.13.0-fairseq-fixed0.12.3.1" in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 3.1")]
    assert "failed: the installation; see" in rows[1]
    assert [row for row in rows if row.startswith("| 3.10 ")][0].count("not run: pip would") == 1
    assert (tmp_path / "work" / "matrix.md").read_text() == done.stdout
    # What is run again replaces its row alone.
    again = matrix("--only", "python3.12-*", python3_12=LARGE)
    assert again.returncode == 0
    changed = [line for line in again.stdout.splitlines() if line not in done.stdout.splitlines()]
    assert len(changed) == 1 and changed[0].startswith("| 3.12 ")


def test_a_dry_run_prints_every_command_and_makes_nothing(matrix, tmp_path):
    done = matrix("--only", "python3.12-*", "--dry-run", python3_12=LARGE)
    assert done.returncode == 0, done.stderr
    for words in ("-m venv", "torch==2.13.0 numpy", "fairseq-fixed==0.12.3.1", "test_contract.py"):
        assert words in done.stdout
    assert not (tmp_path / "work").exists()
