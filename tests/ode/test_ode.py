"""The flow's engines against each other and known solutions, and their gradients."""

import math

import pytest
import torch
from flows import UNEVEN, AsModule, Sinusoid, flow, relative, values_and_gradients, worst

from fairseq_floater.ode import (
    NonFiniteTrajectoryError,
    PositionDynamics,
    solve,
    step_halving_error,
)

EQUIDISTANT = 0.1 * torch.arange(64, dtype=torch.float64)


def sinusoids_error(times, **options):
    """The largest error of a solve of `Sinusoid`, whose solution is known."""
    p0 = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    angle = times[:, None] * torch.tensor([1.0, 0.3], dtype=torch.float64)
    truth = torch.cat([angle.sin(), angle.cos()], dim=1)
    return float((solve(Sinusoid(), p0, times, **options) - truth).abs().max())


def test_a_flow_that_starts_at_zero_learns_in_both_layers():
    dynamics = PositionDynamics(8)
    dynamics.reset_parameters(0.0)
    optimiser = torch.optim.Adam(dynamics.parameters(), lr=0.01)
    for _ in range(2):
        rows = solve(dynamics, torch.zeros(1, 8), EQUIDISTANT.double())
        if not any(p.grad is not None for p in dynamics.parameters()):
            assert not rows.any()
        optimiser.zero_grad()
        (rows - 1).square().sum().backward()
        optimiser.step()
    assert all(p.grad.any() for p in dynamics.parameters())


@pytest.mark.parametrize("times", [EQUIDISTANT, UNEVEN], ids=["equidistant", "uneven"])
@pytest.mark.parametrize("options", [{}, {"time_scale": 7.0, "lr_scale": 3.0}])
def test_written_out_gradient_is_the_gradient_of_the_steps(times, options):
    dynamics, p0 = flow(**options)
    values, gradients = values_and_gradients(dynamics, p0, times)
    expected, expected_gradients = values_and_gradients(AsModule(dynamics), p0, times)
    assert relative(values, expected) < 1e-13
    assert worst(gradients, expected_gradients) < 1e-12


def test_chunks_of_the_backward_pass_join():
    dynamics, p0 = flow(dim=3, rows=(2,))
    times = 0.1 * torch.arange(300, dtype=torch.float64)  # 150 steps: more than two chunks
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.mul_(0.3)
    _, gradients = values_and_gradients(dynamics, p0, times)
    _, expected = values_and_gradients(AsModule(dynamics), p0, times)
    assert worst(gradients, expected) < 1e-12


@pytest.mark.parametrize("times", [EQUIDISTANT[:24], UNEVEN[:6]], ids=["equidistant", "uneven"])
@pytest.mark.parametrize("gradient", ["direct", "adjoint"])
def test_agrees_with_torchdiffeq(times, gradient):
    dynamics, p0 = flow()
    values, gradients = values_and_gradients(dynamics, p0, times, step_size=0.005)
    expected, expected_gradients = values_and_gradients(
        dynamics, p0, times, solver="rk4", step_size=0.005, gradient=gradient
    )
    # The kinks of the ReLU leave second-order errors; torchdiffeq interpolates linearly.
    scale = expected.abs().max()
    assert (values - expected).abs().max() / scale < 1e-4
    assert worst(gradients, expected_gradients) < 1e-3


@pytest.mark.parametrize("solver", ["rk4_hermite", "rk4", "midpoint", "dopri5"])
def test_every_engine_finds_a_known_solution(solver):
    assert sinusoids_error(EQUIDISTANT, solver=solver) < 5e-4


@pytest.mark.parametrize(("solver", "coarsest"), [("rk4_hermite", 0.8), ("adams", 0.4)])
def test_order_of_convergence_is_four(solver, coarsest):
    steps = [coarsest / 2**i for i in range(4)]
    errors = [sinusoids_error(UNEVEN, solver=solver, step_size=step) for step in steps]
    slope = math.log2(errors[0] / errors[-1]) / 3
    assert 3.7 < slope < 4.5, errors


@pytest.mark.parametrize(("solver", "step"), [("rk4", 0.3), ("midpoint", 0.07), ("midpoint", 0.3)])
def test_off_its_grid_torchdiffeq_gives_the_same_row_however_many_follow(solver, step):
    dynamics, p0 = flow(dtype=torch.float32)
    long = solve(dynamics, p0, EQUIDISTANT, solver=solver, step_size=step)
    for n in (2, 3, 5, 17, 63):
        short = solve(dynamics, p0, EQUIDISTANT[:n], solver=solver, step_size=step)
        assert torch.equal(short, long[:n])


@pytest.mark.parametrize("std", [0.01, None], ids=["small", "linear"])
def test_default_step_is_accurate_and_the_estimate_honest(std):
    torch.manual_seed(0)
    dynamics = PositionDynamics(64)
    dynamics.reset_parameters(std)
    p0 = torch.randn(4, 64) * 0.1
    times = 0.1 * torch.arange(256, dtype=torch.float64)
    with torch.no_grad():
        truth = solve(dynamics.double(), p0.double(), times, step_size=0.01)
    error = float((solve(dynamics.float(), p0, times) - truth).detach().abs().max())
    error /= float(truth.abs().max())
    estimate = step_halving_error(dynamics, p0, times)
    assert error < 1e-3
    assert error < 3 * estimate + 1e-6


def test_the_error_of_an_engines_finest_steps_is_estimated_too():
    dynamics, p0 = flow(8)
    times = 0.1 * torch.arange(64, dtype=torch.float64)
    estimate = step_halving_error(dynamics, p0, times, solver="collocation", step_size=0.03)
    assert 0 < estimate < 1e-3


def test_long_times_stay_exact_in_float32():
    p0 = torch.tensor([0.0, 0.0, 1.0, 1.0])
    times = 0.1 * torch.arange(10_000, dtype=torch.float64)
    last = solve(Sinusoid(), p0, times)[-1]
    w = torch.tensor([1.0, 0.3], dtype=torch.float64) * times[-1]
    torch.testing.assert_close(last.double(), torch.cat([w.sin(), w.cos()]), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([0.0, 0.2, 0.1], r"times\[2\] = 0.1 follows times\[1\] = 0.2"),
        ([0.0, 0.1, 0.1], "strictly increasing"),
        ([0.0, float("nan")], "must be finite"),
        ([0.0, float("inf")], "must be finite"),
        ([], "N >= 1"),
    ],
)
def test_bad_times_are_refused(times, words):
    dynamics, p0 = flow()
    with pytest.raises(ValueError, match=words):
        solve(dynamics, p0, torch.tensor(times))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"solver": "euler"},
            "adams, collocation, rk4_hermite, rk4, midpoint, dopri5, but is 'euler'",
        ),
        ({"gradient": "none"}, "direct, adjoint, but is 'none'"),
        ({"solver": "dopri5", "step_size": 0.1}, "chooses its own steps"),
    ],
)
def test_bad_options_are_refused(options, words):
    dynamics, p0 = flow()
    with pytest.raises(ValueError, match=words):
        solve(dynamics, p0, EQUIDISTANT, **options)


def test_half_precision_is_refused():
    dynamics, p0 = flow()
    with pytest.raises(ValueError, match="float32 or float64"):
        solve(dynamics, p0.half(), EQUIDISTANT)


def test_an_exploding_flow_says_when_and_what_to_do():
    dynamics, p0 = flow(dtype=torch.float32)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.mul_(80)
    with pytest.raises(NonFiniteTrajectoryError, match=r"from t = [\d.]+ \(row \d+\).*time-scale"):
        solve(dynamics, p0, 0.1 * torch.arange(2000, dtype=torch.float64))


def test_learning_rate_scale_multiplies_adams_step():
    steps = {}
    for scale in (1.0, 5.0):
        torch.manual_seed(0)
        dynamics = PositionDynamics(4, lr_scale=scale).double()
        before = dynamics.coefficients().w1.detach().clone()
        optimizer = torch.optim.Adam(dynamics.parameters(), lr=1e-3, eps=1e-16)
        solve(dynamics, torch.ones(4, dtype=torch.float64), UNEVEN).sum().backward()
        optimizer.step()
        steps[scale] = dynamics.coefficients().w1.detach() - before
    torch.testing.assert_close(steps[5.0], 5 * steps[1.0], rtol=1e-6, atol=1e-12)
