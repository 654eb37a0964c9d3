import pytest

from fairseq_floater.ode import flow_solver


@pytest.fixture
def measured(monkeypatch):
    """A list of the times of each call of `choose`."""
    found = []

    def noted(dynamics, p0, times, training, choose=flow_solver.choose, **tried):
        found.append(times)
        return choose(dynamics, p0, times, training, **tried)

    monkeypatch.setattr(flow_solver, "choose", noted)
    return found


@pytest.fixture()
def measured_once():
    """Measure each time: these tests are about the choice."""
