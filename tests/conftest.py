"""One thread a process: small matrices gain nothing from more, and sums keep their order."""

import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

# The files that take minutes, longest first: begun last, one of them would run alone at the end.
LONGEST = (
    *("test_scripts", "test_integration", "test_distributed", "test_preemption"),
    *("test_integration_training", "test_table2", "test_s2l_script", "test_wmt14"),
)


def pytest_collection_modifyitems(items):
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(Path(item.path).stem, len(LONGEST)))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter):
    """How many inputs each fuzz target had, where they were asked for (one process: no -n)."""
    fuzzing = sys.modules.get("fuzzing")
    if fuzzing is None or not fuzzing.ASKED:
        return
    terminalreporter.section("inputs tried, and those of them accepted")
    for target, tried in fuzzing.TRIED.items():
        terminalreporter.line(f"{target:<40}{tried:>9,}{fuzzing.ACCEPTED[target]:>9,}")
    terminalreporter.line(f"{'in all':<40}{sum(fuzzing.TRIED.values()):>9,}")
