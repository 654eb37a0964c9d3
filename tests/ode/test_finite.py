"""Flows that overflow their dtype: the error says when, how large they were, and what to do."""

import gc
import weakref

import pytest
import torch

from fairseq_floater.ode import (
    NonFiniteGradientError,
    PositionDynamics,
    StiffFlowError,
    choose,
    solve,
)

TIMES = 0.1 * torch.arange(200, dtype=torch.float64)
ENGINES = ("adams", "collocation", "rk4_hermite", "rk4")
# Coarser than rk4's default, and inaccurate for e^(8 t), but the gradient still explodes.
OPTIONS = {"rk4": {"step_size": 0.1}}


def balancing_flow(strength, dim=4):
    """h(p) = strength (ReLU(p + 1) - 1): p stays 0 while its gradient grows as exp(strength t)."""
    dynamics = PositionDynamics(dim)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.zero_()
        dynamics.weight1[:, :dim] = torch.eye(dim)
        dynamics.weight2[:, :dim] = strength * torch.eye(dim)
        dynamics.bias1.fill_(1)
        dynamics.bias2.fill_(-strength)
    return dynamics, torch.zeros(3, dim, requires_grad=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_explodes_in_the_flow_stops_with_when_and_advice(engine):
    dynamics, p0 = balancing_flow(8.0)
    values = solve(dynamics, p0, TIMES, solver=engine, **OPTIONS.get(engine, {}))
    assert not values.any()
    words = (
        r"gradient of the position flow is not finite.*at t = ([\d.]+) \(row (\d+)\);.*norm one row"
    )
    with pytest.raises(NonFiniteGradientError, match=words + ".*--floater-lr-scale") as caught:
        values[-1].sum().backward()
    # exp(8 s) exceeds float32 (3.4e38) at s = 11.1, that is at t = 19.9 - 11.1 = 8.8; the norm of 12 numbers
    # shifts this a little. RK4 searches for the place, and its values grow a little slower than exp.
    t = float(caught.value.args[0].split("at t = ")[1].split(" ")[0])
    assert 7.5 < t < 9.5
    assert f"(row {round(t / 0.1)})" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_gradient_that_fits_is_passed_on(engine):
    dynamics, p0 = balancing_flow(3.0)
    values = solve(dynamics, p0, TIMES, solver=engine, **OPTIONS.get(engine, {}))
    values[-1].sum().backward()
    assert p0.grad.isfinite().all()
    assert p0.grad.max() > 1e24
    assert all(p.grad.isfinite().all() for p in dynamics.parameters())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_overflowed_before_the_flow_is_fairseqs_to_skip(engine, value):
    dynamics, p0 = balancing_flow(1.0)
    values = solve(dynamics, p0, TIMES, solver=engine, **OPTIONS.get(engine, {}))
    values.backward(torch.full_like(values, value))
    assert not p0.grad.isfinite().any()


def test_nothing_is_left_of_a_solve_on_the_initial_values_or_in_memory():
    dynamics, p0 = balancing_flow(1.0)
    for _ in range(3):
        values = solve(dynamics, p0, TIMES)
        held = weakref.ref(values)
        values[-1].sum().backward()
        del values
        gc.collect()
        assert held() is None
    assert not p0._backward_hooks


@pytest.mark.parametrize("engine", ["adams", "rk4_hermite", "rk4"])
def test_a_gradient_of_a_gradient_leaves_nothing_in_memory(engine):
    dynamics, p0 = balancing_flow(1.0)
    held = weakref.ref(dynamics)
    values = solve(dynamics, p0, TIMES[:20], solver=engine)
    (gradient,) = torch.autograd.grad(values.square().sum(), p0, create_graph=True)
    del values, gradient, dynamics, p0
    gc.collect()
    assert held() is None


def test_a_flow_whose_gradient_explodes_is_measured_as_far_as_it_goes():
    # The gradient over 200 rows overflows float32. Over 100 rows it is about 1e34; its square overflows.
    choice = choose(*balancing_flow(8.0), TIMES)
    assert choice.num_times == 100
    assert 0 < choice.gradient_error < 0.1


def test_a_flow_too_stiff_for_the_adaptive_solver_is_said():
    with pytest.raises(
        StiffFlowError, match=r"too stiff .*float32 \(.*--floater-solver auto"
    ) as caught:
        solve(lambda t, p: p * p, torch.ones(2), TIMES, solver="dopri5")  # infinite at t = 1
    assert "step-size" not in str(caught.value)  # dopri5 has none


@pytest.mark.parametrize("solver", ["dopri5", "rk4"])
def test_what_a_dynamics_asserts_is_its_own(solver):
    def picky(t, p):
        assert t < 1, "bad time"
        return p

    with pytest.raises(AssertionError, match="bad time"):
        solve(picky, torch.ones(2), TIMES, solver=solver)
