"""Collocation: its equations, their gradient, and the fallback to RK4."""

import math

import pytest
import torch
from flows import (
    TIMES,
    UNEVEN,
    Sinusoid,
    named_flow,
    relative,
    values_and_gradients,
    weak_flow,
    worst,
)

from fairseq_floater.ode import SolveRecord, solve
from fairseq_floater.ode.engines.collocation import TOLERANCE, solve_collocation
from fairseq_floater.ode.engines.hermite import HermiteGrid
from fairseq_floater.ode.engines.segment import quadrature


@pytest.mark.parametrize("steps", [8, 16, 64])
def test_quadrature_is_exact_for_cubics(steps):
    first, powers = quadrature(steps)
    nodes = torch.arange(steps + 1, dtype=torch.float64)
    for degree in range(4):
        slopes = nodes**degree
        integral = first * slopes[0] + powers[0] @ slopes[1:]
        torch.testing.assert_close(integral, nodes[1:] ** (degree + 1) / (degree + 1))
    torch.testing.assert_close(powers[1], powers[0] @ powers[0])


def by_plain_iteration(dynamics, p0, times, step, steps):
    """Solve the same equations, segment by segment, by Picard iteration under autograd."""
    first, powers = quadrature(steps)
    x0, values, slopes = p0, [p0[None]], []
    count = math.ceil((float(times[-1]) - 1e-9) / step / steps)
    for segment in range(count):
        t = step * (segment * steps + torch.arange(steps + 1, dtype=torch.float64))
        x = x0.expand(steps, *x0.shape)
        slope0 = dynamics(t[0], x0)
        for _ in range(40):
            inner = torch.stack([dynamics(time, point) for time, point in zip(t[1:], x)])
            shape = (steps, *[1] * x0.dim())
            x = x0 + step * (first.view(shape) * slope0 + torch.tensordot(powers[0], inner, dims=1))
        values.append(x)
        slopes += [slope0[None], inner[:-1]]
        x0 = x[-1]
    slopes.append(dynamics(t[-1], x0)[None])
    grid = HermiteGrid(times, step, p0, multiple=steps)
    return grid.interpolate(torch.cat(values), torch.cat(slopes))


@pytest.mark.parametrize("times", [TIMES[:70], UNEVEN], ids=["equidistant", "uneven"])
@pytest.mark.parametrize("wide", [True, False])
def test_collocation_solves_its_equations_and_their_gradient(times, wide):
    dynamics, p0 = weak_flow(dim=4, rows=(2,))
    record = SolveRecord(iterations=20, check_each=False, wide=wide)
    values = solve_collocation(dynamics, p0, times, 0.4, record)
    expected = by_plain_iteration(dynamics, p0, times, 0.4, steps=64 if wide else 16)
    weights = torch.sin(torch.arange(values.numel(), dtype=values.dtype)).view_as(values)
    inputs = [p0, *dynamics.parameters()]
    gradients = torch.autograd.grad((values * weights).sum(), inputs)
    references = torch.autograd.grad((expected * weights).sum(), inputs)
    assert record.fallbacks == 0 and record.residual <= TOLERANCE
    assert relative(values, expected) < 1e-5
    assert worst(gradients, references) < 1e-4


def test_a_flow_too_strong_for_the_iteration_is_rk4s():
    dynamics, p0 = named_flow("fast")
    record = SolveRecord()
    options = {"solver": "collocation", "step_size": 0.2}
    values, gradients = values_and_gradients(dynamics, p0, TIMES, record=record, **options)
    expected, references = values_and_gradients(dynamics, p0, TIMES, step_size=0.1)
    assert record.fallbacks == 1
    assert torch.equal(values, expected)
    for pair in zip(gradients, references, strict=True):
        torch.testing.assert_close(*pair)


def test_rk4_stands_in_with_a_finer_step_if_that_was_asked_for(monkeypatch):
    monkeypatch.setattr("fairseq_floater.ode.engines.segment.MAX_ITERATIONS", 0)
    dynamics, p0 = named_flow("attracted")
    values = solve(dynamics, p0, TIMES, solver="collocation", step_size=0.05)
    assert torch.equal(values, solve(dynamics, p0, TIMES, step_size=0.05))


def test_a_gradient_that_does_not_converge_is_rk4s(monkeypatch):
    dynamics, p0 = named_flow("attracted")
    record = SolveRecord()
    values = solve(dynamics, p0, TIMES, solver="collocation", step_size=0.2, record=record)
    assert record.fallbacks == 0
    monkeypatch.setattr("fairseq_floater.ode.engines.segment.MAX_ITERATIONS", 0)
    (gradient,) = torch.autograd.grad(values.sum(), p0)
    (expected,) = torch.autograd.grad(solve(dynamics, p0, TIMES, step_size=0.1).sum(), p0)
    assert record.fallbacks == 1
    torch.testing.assert_close(gradient, expected)


def without_checks(iterations):
    return SolveRecord(iterations=iterations, check_each=False)


def test_as_many_iterations_as_were_needed_give_the_same_without_checks():
    dynamics, p0 = named_flow("linear")
    inputs = [p0, *dynamics.parameters()]
    checking = SolveRecord(check_each=True)
    checked = solve(dynamics, p0, TIMES, solver="collocation", record=checking)
    record = without_checks(checking.iterations_needed)
    at_once = solve(dynamics, p0, TIMES, solver="collocation", record=record)
    assert relative(at_once, checked) < 1e-4
    gradients = [torch.autograd.grad(values.sum(), inputs) for values in (at_once, checked)]
    assert worst(*gradients) < 1e-3
    assert record.fallbacks == 0
    assert record.take()["residual"] <= TOLERANCE


@pytest.mark.parametrize(("name", "iterations"), [("attracted", 1), ("fast", 20)])
def test_too_few_iterations_are_seen_at_once_and_made_more(name, iterations):
    """``fast`` overflows in the iteration."""
    dynamics, p0 = named_flow(name)
    record = without_checks(iterations)
    values = solve(dynamics, p0, TIMES, solver="collocation", step_size=0.4, record=record)
    expected = solve(dynamics, p0, TIMES, step_size=0.1)
    assert torch.equal(values, expected)
    inputs = [p0, *dynamics.parameters()]
    for pair in zip(*(torch.autograd.grad(rows.sum(), inputs) for rows in (values, expected))):
        torch.testing.assert_close(*pair)
    assert record.iterations == iterations + 2
    assert record.take()["fallbacks"] == 1


def test_a_gradient_that_is_not_finite_is_no_fault_of_the_iteration():
    dynamics, p0 = named_flow("small")
    record = SolveRecord()
    values = solve(dynamics, p0, TIMES, solver="collocation", record=record)
    (gradient,) = torch.autograd.grad(values, p0, torch.full_like(values, float("inf")))
    assert not gradient.isfinite().any()
    assert record.fallbacks == 0


def test_collocation_of_another_dynamics_is_refused():
    with pytest.raises(ValueError, match="needs a PositionDynamics, but `dynamics` is a Sinusoid"):
        solve(Sinusoid(), torch.ones(4), TIMES, solver="collocation")


@pytest.mark.parametrize("step", [0.001, 1.6])
def test_collocation_with_too_few_or_too_many_nodes_is_refused(step):
    dynamics, p0 = weak_flow()
    with pytest.raises(ValueError, match=f"between 0.0125 and 0.8 for collocation, but is {step}"):
        solve(dynamics, p0, TIMES, solver="collocation", step_size=step)
