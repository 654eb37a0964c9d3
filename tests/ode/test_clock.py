"""Logarithmic time t_i = delta T ln(1 + i / T) in the clock, every engine, and FLOATER's tables."""

import math

import helpers as h
import pytest
import torch
from forcing import assert_padding_moves_nothing, assert_steps_equal_one_pass

from fairseq_floater.ode import ENGINES, TORCHDIFFEQ_SOLVERS, Clock, PositionDynamics
from fairseq_floater.ode.solve import solve
from fairseq_floater.ode.solve_record import SolveRecord
from fairseq_floater.position_encoders.transforms import Places

BENT = Clock(0.1, 6.0)


def read(text):
    return Clock.read({"floater_time": text, "floater_delta": 0.2})


def test_times_are_those_of_the_formula_and_go_back_to_positions():
    assert read("linear") == Clock(0.2)
    assert read("log:12") == Clock(0.2, 12.0)
    assert read("log").bend == 32
    assert [read(text).bend for text in ("linear", "log:12.5", "log")] == [*(None, 12.5, 32.0)]
    for i, time in enumerate(read("log:12").of_tokens(100).tolist()):
        assert time == pytest.approx(0.2 * 12 * math.log(1 + i / 12), abs=1e-12)
        assert read("log:12").position(time) == pytest.approx(i, abs=1e-9)
        assert read("linear").of_tokens(100)[i] == 0.2 * i
        assert read("linear").position(0.2 * i) == pytest.approx(i, abs=1e-12)


@pytest.mark.parametrize(
    "text", ["", "log:", "log:0", "log:-3", "log:x", "log:inf", "ln", "linear:3"]
)
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="`--floater-time` must be linear, log or log:T"):
        h.build("floater", target="qkv", floater_time=text)


def flow():
    """A flow whose ReLUs stay active, so that every engine reaches its full order."""
    torch.manual_seed(0)
    dynamics = PositionDynamics(12)
    with torch.no_grad():
        dynamics.bias1.add_(5)
    return dynamics, (0.5 * torch.randn(3, 12)).requires_grad_()


def solved(times, dtype=torch.float32, **options):
    """Values, and the gradient of a weighted sum of them."""
    dynamics, p0 = flow()
    dynamics, p0 = dynamics.to(dtype), p0.detach().to(dtype).requires_grad_()
    values = solve(dynamics, p0, times, **options)
    weights = torch.randn(values.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = torch.autograd.grad(values, [p0, *dynamics.parameters()], weights)
    return values.detach().double(), torch.cat([g.flatten() for g in gradients])


@pytest.fixture(scope="module")
def exact():
    return solved(BENT.of_tokens(90), torch.float64, solver="rk4", step_size=0.005)


@pytest.mark.parametrize(
    ("solver", "gradient"),
    [(s, "direct") for s in ENGINES] + [(s, "adjoint") for s in TORCHDIFFEQ_SOLVERS],
)
def test_every_engine_solves_at_times_that_are_not_even(solver, gradient, exact):
    values, slope = solved(BENT.of_tokens(90), solver=solver, gradient=gradient)
    assert h.difference(values, exact[0]) <= 1e-4 * float(exact[0].abs().max())
    assert float((slope - exact[1]).norm()) <= 1e-3 * float(exact[1].norm())


def test_even_times_on_the_grid_of_torchdiffeq_are_not_interpolated():
    """The paper's solver and delta give torchdiffeq's results to the last bit."""
    import torchdiffeq

    dynamics, p0 = flow()
    times = Clock(0.1).of_tokens(40)
    with torch.no_grad():
        theirs = torchdiffeq.odeint(
            dynamics, p0, times, method="rk4", options={"step_size": 0.02}, rtol=1, atol=1
        )
        record = SolveRecord()
        assert torch.equal(solve(dynamics, p0, times, solver="rk4", record=record), theirs)
    assert record.evaluations <= 4 * 196  # interpolation would cost one more a token


# FLOATER's tables.


@h.every_target
def test_a_table_in_bent_time_is_the_flow_at_its_times(target):
    model = h.visible("floater", target=target, floater_time="log:5")
    for stack, name, signal in h.signals(model):
        blocks = h.parts(stack, name)
        with torch.no_grad():
            p0 = torch.stack([block.initial() for block in blocks], dim=1)
            times = 0.1 * 5 * torch.log1p(torch.arange(70, dtype=torch.float64) / 5)
            expected = solve(signal.dynamics, p0, times, solver="rk4")
            scale = expected.abs().max()
            assert h.difference(signal.rows(Places(70), blocks), expected) <= 1e-3 * scale
            assert (
                h.difference(signal.rows(Places(9), blocks), signal.rows(Places(70), blocks)[:9])
                <= 1e-6
            )
            # With stretched positions, rows also lie between tokens.
            fine = signal.rows(Places(4 * 69 + 1, 4), blocks)
            assert h.difference(fine[::4], expected) <= 1e-3 * scale
            between = solve(signal.dynamics, p0, BENT.of_tokens(1), solver="rk4")
            assert h.difference(fine[:1], between) == 0
            places = torch.tensor([0.0, 6.75], dtype=torch.float64)
            there = solve(signal.dynamics, p0, 0.5 * torch.log1p(places / 5), solver="rk4")[-1]
            assert h.difference(fine[27], there) <= 1e-3 * scale


@h.every_target
def test_the_contract_holds_in_bent_time(target):
    model = h.visible("floater", target=target, floater_time="log:3")
    batch = h.source_batch(), h.target_batch()
    assert_steps_equal_one_pass(model, *batch)
    assert_padding_moves_nothing(model, *batch)
    linear = h.visible("floater", target=target)
    assert h.difference(h.log_probs(linear, *batch), h.log_probs(model, *batch)) > 1e-3


def test_errors_are_measured_at_the_times_of_tokens(measured):
    options = {"no_token_positional_embeddings": True, "position_stretch": "3:4"}
    model = h.build("floater", floater_time="log:7", **options).train()
    batch = h.source_batch(lengths=(30,)), h.target_batch(lengths=(30,))
    h.raw_log_probs(model, *batch)  # positions up to 4 * 29
    with torch.no_grad():
        h.log_probs(model.eval(), *batch)
    assert [len(times) for times in measured] == [128, 128, 256, 256]
    for times in measured:
        expected = 0.7 * torch.log1p(torch.arange(len(times), dtype=torch.float64) / 7)
        assert h.difference(times, expected) <= 1e-12


def test_a_table_in_bent_time_is_used_again_between_solves():
    options = {"floater_time": "log:4", "floater_update_interval": 3}
    model = h.build("floater", target="hidden", dropout=0.0, **options).train()
    batch = h.source_batch(), h.target_batch()
    model.set_num_updates(0)
    first = h.raw_log_probs(model, *batch)
    model.set_num_updates(1)
    assert h.difference(first, h.raw_log_probs(model, *batch)) == 0
