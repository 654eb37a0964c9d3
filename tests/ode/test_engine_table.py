"""A solver is one file and one line: whatever lists, checks or calls engines reads one table."""

import pytest
import torch
from flows import flow

from benchmarks.solvers import COMPARED
from fairseq_floater.ode import ENGINES, auto, checked_step_size, solve
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.flow_solver import engine_for
from fairseq_floater.position_encoders.floater import SOLVER_OPTIONS


def test_every_reader_of_the_table_knows_every_engine():
    solver = next(o for o in SOLVER_OPTIONS if o.name == "--floater-solver")
    assert solver.choices == ("auto", *ENGINES)
    for name, engine in ENGINES.items():
        assert engine.name == name and f"{name}: {engine.summary}" in solver.help
        assert checked_step_size(name, None, "direct") == engine.default_step
    assert {name for name, _ in COMPARED} == set(ENGINES)


def test_auto_goes_from_the_fastest_engine_to_the_most_robust():
    coarse, robust = (0.4, 0.2, 0.1), [("rk4_hermite", 0.1), ("rk4_hermite", 0.05)]
    adams = [("adams", step) for step in (*coarse, 0.05, 0.025)]
    assert list(auto.CANDIDATES["cpu"]) == adams + robust
    parallel = [("collocation", step) for step in coarse]
    assert list(auto.CANDIDATES["cuda"]) == parallel + adams[2:] + robust
    finest = [("adams", 0.0125), ("rk4_hermite", 0.0125)]
    assert list(auto.EVALUATION_CANDIDATES) == adams + finest


@pytest.mark.parametrize(
    ("device", "step", "name"),
    [
        ("cpu", 1.0, "adams"),
        ("cuda", 0.2, "collocation"),
        ("cuda", 1.0, "adams"),  # collocation takes no step that long
        ("cuda", 0.02, "adams"),  # nor one that short
        ("mps", 0.2, "adams"),
        ("cuda", float("nan"), "rk4_hermite"),  # none does: its check refuses it
    ],
)
def test_auto_with_a_given_step_takes_the_first_engine_that_allows_it(device, step, name):
    options = {"floater_solver": "auto", "floater_step_size": step}
    assert engine_for(options, device) == (name, step)


def test_solve_calls_and_checks_an_engine_by_its_line_alone(monkeypatch):
    def constant(dynamics, p0, times, step, record):
        return p0.expand(len(times), *p0.shape) * step

    engine = Engine(name="still", summary="", solve=constant, default_step=2.0, coarsest_step=3.0)
    monkeypatch.setitem(ENGINES, "still", engine)
    dynamics, p0 = flow(8)
    times = torch.tensor([0.0, 0.1])
    assert torch.equal(solve(dynamics, p0, times, solver="still")[1], 2 * p0)
    with pytest.raises(ValueError, match="between 0.0 and 3.0 for still, but is 4.0 instead"):
        solve(dynamics, p0, times, solver="still", step_size=4.0)
    with pytest.raises(ValueError, match="needs a solver of torchdiffeq"):
        solve(dynamics, p0, times, solver="still", gradient="adjoint")
