"""A solver is one file and one line of the table that every list, check or call of engines reads."""

import pytest
import torch
from flows import flow

from benchmarks.solvers import COMPARED
from fairseq_floater.ode import ENGINES, checked_step_size, solve
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.flow_solver import engine_for
from fairseq_floater.position_encoders.floater_options import FLOATER_OPTIONS


def test_every_reader_of_the_table_knows_every_engine():
    solver = next(o for o in FLOATER_OPTIONS if o.name == "--floater-solver")
    assert solver.choices == ("auto", *ENGINES)
    for name, engine in ENGINES.items():
        assert engine.name == name and f"{name}: {engine.summary}" in solver.help
        assert checked_step_size(name, None, "direct") == engine.default_step
    assert {name for name, _ in COMPARED} == set(ENGINES)


@pytest.mark.parametrize(
    ("device", "options", "engine"),
    [
        ("cpu", {}, ("adams", None)),
        ("cpu", {"step": 1.0}, ("adams", 1.0)),
        ("cuda", {"step": 0.2}, ("collocation", 0.2)),
        ("cuda", {"step": 1.0}, ("adams", 1.0)),  # collocation takes no step that long
        ("cuda", {"step": 0.01}, ("adams", 0.01)),  # nor one that short
        ("mps", {"step": 0.2}, ("adams", 0.2)),
        ("cuda", {"step": float("nan")}, ("rk4_hermite", float("nan"))),  # its check refuses NaN
        ("cuda", {"solver": "rk4"}, ("rk4", None)),
        ("cpu", {"solver": "collocation", "step": 0.1}, ("collocation", 0.1)),
    ],
)
def test_auto_takes_the_first_engine_that_allows_the_step(device, options, engine):
    solver, step = options.get("solver", "auto"), options.get("step")
    found = engine_for({"floater_solver": solver, "floater_step_size": step}, device)
    assert str(found) == str(engine)


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
