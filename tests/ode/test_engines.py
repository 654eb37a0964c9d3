"""The engines written for speed, and the choice between them: against autograd, the truth and each other."""

import copy
import math
from typing import ClassVar

import pytest
import torch
from flows import UNEVEN, AsModule, Sinusoid, flow, relative, values_and_gradients
from helpers import build, parts
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.flows import standard_flows
from fairseq_floater.ode import PositionDynamics, SolveRecord, choose, solve
from fairseq_floater.ode import auto as choice_module
from fairseq_floater.ode.engines.collocation import (
    MAX_ITERATIONS,
    TOLERANCE,
    solve_collocation,
)
from fairseq_floater.ode.engines.hermite import HermiteGrid
from fairseq_floater.ode.engines.segment import quadrature
from fairseq_floater.ode.solve import row_errors

TIMES = 0.1 * torch.arange(96, dtype=torch.float64)
FLOWS = ("small", "linear", "attracted", "oscillating")


def named_flow(name, dim=32, rows=6, seed=0):
    found = next(f for f in standard_flows(dim, rows, seed) if f.name == name)
    return found.dynamics, found.p0.requires_grad_()


def values_and_gradient(dynamics, p0, weights, **options):
    """Of <weights, values>, with respect to everything, as one vector."""
    values = solve(dynamics, p0, TIMES, **options)
    inputs = [p0, *dynamics.parameters()]
    gradients = torch.autograd.grad(values, inputs, weights.to(values))
    return values.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def weak_flow(dim=6, rows=(3, 2)):
    dynamics, p0 = flow(dim=dim, rows=rows)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.mul_(0.5)
    return dynamics, p0


# Adams-Bashforth


@pytest.mark.parametrize("positions", [2, 3, 5, 9, 40])
@pytest.mark.parametrize("step", [0.1, 0.2, 0.4])
def test_adams_written_out_gradient_is_the_gradient_of_the_steps(positions, step):
    dynamics, p0 = flow()
    options = {"solver": "adams", "step_size": step}
    values, gradients = values_and_gradients(dynamics, p0, TIMES[:positions], **options)
    expected, references = values_and_gradients(
        AsModule(dynamics), p0, TIMES[:positions], **options
    )
    assert relative(values, expected) < 1e-13
    for gradient, reference in zip(gradients, references, strict=True):
        assert relative(gradient, reference) < 1e-12


# Collocation


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
    """The same equations, segment by segment, solved by Picard's iteration under autograd."""
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
    record = SolveRecord(iterations=20, look=False, wide=wide)
    values = solve_collocation(dynamics, p0, times, 0.4, record)
    expected = by_plain_iteration(dynamics, p0, times, 0.4, steps=64 if wide else 16)
    weights = torch.sin(torch.arange(values.numel(), dtype=values.dtype)).view_as(values)
    inputs = [p0, *dynamics.parameters()]
    gradients = torch.autograd.grad((values * weights).sum(), inputs)
    references = torch.autograd.grad((expected * weights).sum(), inputs)
    assert record.fallbacks == 0 and record.residual <= TOLERANCE
    assert relative(values, expected) < 1e-5
    for gradient, reference in zip(gradients, references, strict=True):
        assert relative(gradient, reference) < 1e-4


def test_a_flow_too_strong_for_the_iteration_is_rk4s():
    dynamics, p0 = named_flow("fast")
    record = SolveRecord()
    options = {"solver": "collocation", "step_size": 0.2}
    values, gradients = values_and_gradients(dynamics, p0, TIMES, record=record, **options)
    expected, references = values_and_gradients(dynamics, p0, TIMES, step_size=0.1)
    assert record.fallbacks == 1
    assert torch.equal(values, expected)
    for gradient, reference in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_a_gradient_that_does_not_converge_is_rk4s(monkeypatch):
    dynamics, p0 = named_flow("attracted")
    record = SolveRecord()
    values = solve(dynamics, p0, TIMES, solver="collocation", step_size=0.2, record=record)
    assert record.fallbacks == 0
    monkeypatch.setattr("fairseq_floater.ode.engines.collocation.MAX_ITERATIONS", 0)
    (gradient,) = torch.autograd.grad(values.sum(), p0)
    (expected,) = torch.autograd.grad(solve(dynamics, p0, TIMES, step_size=0.1).sum(), p0)
    assert record.fallbacks == 1
    torch.testing.assert_close(gradient, expected)


class Precision(TorchDispatchMode):
    """Notes what products of float32 may lose on a GPU."""

    seen: ClassVar[set] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::mm", "aten::addmm"):
            self.seen.add(torch.backends.cuda.matmul.fp32_precision)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def tf32():
    """Lets a training's products be of TensorFloat-32, where torch can say so without a GPU."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch has no such setting")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    Precision.seen.clear()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("solver", ["adams", "collocation", "rk4_hermite"])
def test_products_of_solve_and_gradient_are_exact_where_the_trainings_are_not(tf32, solver):
    dynamics, p0 = named_flow("small")
    with Precision():
        solve(dynamics, p0, TIMES[:20], solver=solver).sum().backward()
    assert Precision.seen == {"ieee"}
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_products_of_a_closed_form_are_exact_where_the_trainings_are_not(tf32):
    """Squared until it turns by hundreds of positions, a rotation of TF32's ten bits would be none."""
    encoder = build("rotation_flow").encoder
    blocks = parts(encoder, "positions")
    with Precision():
        encoder.positions(200, blocks, torch.float32)
    assert Precision.seen == {"ieee"}


# Without a look after each iteration, as on a GPU


def in_one_look(iterations):
    return SolveRecord(iterations=iterations, look=False)


def test_as_many_iterations_as_were_needed_give_the_same_without_looking():
    dynamics, p0 = named_flow("linear")
    inputs = [p0, *dynamics.parameters()]
    seeing = SolveRecord(look=True)
    looked = solve(dynamics, p0, TIMES, solver="collocation", record=seeing)
    record = in_one_look(seeing.iterations_needed)
    at_once = solve(dynamics, p0, TIMES, solver="collocation", record=record)
    assert relative(at_once, looked) < 1e-4
    for gradient, reference in zip(
        torch.autograd.grad(at_once.sum(), inputs), torch.autograd.grad(looked.sum(), inputs)
    ):
        assert relative(gradient, reference) < 1e-3
    assert record.fallbacks == 0
    assert record.take()["residual"] <= TOLERANCE


@pytest.mark.parametrize(("name", "iterations"), [("attracted", 1), ("fast", 20)])
def test_too_few_iterations_are_seen_at_once_and_made_more(name, iterations):
    """``fast`` overflows: what the iteration leaves is not finite."""
    dynamics, p0 = named_flow(name)
    record = in_one_look(iterations)
    values = solve(dynamics, p0, TIMES, solver="collocation", step_size=0.4, record=record)
    expected = solve(dynamics, p0, TIMES, step_size=0.1)
    assert torch.equal(values, expected)
    inputs = [p0, *dynamics.parameters()]
    for gradient, reference in zip(
        torch.autograd.grad(values.sum(), inputs), torch.autograd.grad(expected.sum(), inputs)
    ):
        torch.testing.assert_close(gradient, reference)
    assert record.iterations == iterations + 2
    assert record.take()["fallbacks"] == 1


def test_a_gradient_that_is_not_finite_is_no_fault_of_the_iteration():
    dynamics, p0 = named_flow("small")
    record = SolveRecord()
    values = solve(dynamics, p0, TIMES, solver="collocation", record=record)
    (gradient,) = torch.autograd.grad(values, p0, torch.full_like(values, float("inf")))
    assert not gradient.isfinite().any()
    assert record.fallbacks == 0


# All of them


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("solver", ["adams", "collocation", "rk4_hermite"])
def test_default_steps_are_exact_enough(solver, name):
    dynamics, p0 = named_flow(name, dim=128)
    exact = copy.deepcopy(dynamics).double()
    p0_exact = p0.detach().double().requires_grad_()
    weights = torch.randn(len(TIMES), *p0.shape, generator=torch.Generator().manual_seed(1))
    truth, reference = values_and_gradient(exact, p0_exact, weights, step_size=0.0125)
    values, gradient = values_and_gradient(dynamics, p0, weights, solver=solver)
    assert float((values - truth).abs().max() / truth.abs().max()) < 1e-3
    assert relative(gradient, reference) < 1e-2


def test_an_iteration_that_fails_is_no_choice(monkeypatch):
    candidates = {"cpu": (("collocation", 0.4), ("rk4_hermite", 0.05))}
    monkeypatch.setattr(choice_module, "CANDIDATES", candidates)
    monkeypatch.setattr("fairseq_floater.ode.engines.collocation.MAX_ITERATIONS", 1)
    choice = choose(*named_flow("attracted"), TIMES)
    assert choice.solver == "rk4_hermite" and choice.iterations == 0


@pytest.mark.parametrize("solver", ["adams", "collocation"])
def test_a_row_does_not_depend_on_how_many_were_asked_for(solver):
    dynamics, p0 = named_flow("attracted")
    long = solve(dynamics, p0, TIMES, solver=solver)
    for n in (1, 2, 3, 17, 65, 95):
        assert torch.equal(solve(dynamics, p0, TIMES[:n], solver=solver), long[:n])


@pytest.mark.parametrize("solver", ["adams", "collocation", "rk4_hermite", "rk4", "midpoint"])
def test_evaluations_in_a_row_are_counted(solver):
    dynamics, p0 = weak_flow()
    record = SolveRecord()
    solve(dynamics, p0, TIMES[:65], solver=solver, record=record)
    expected = {"adams": 74, "rk4_hermite": 129, "rk4": 1280, "midpoint": 640}
    counts = record.take()
    assert counts["solves"] == 1
    if solver == "collocation":
        assert 3 <= counts["evaluations"] <= MAX_ITERATIONS + 3
        assert 0 <= float(counts["residual"]) <= TOLERANCE
    else:
        assert counts["evaluations"] == expected[solver]
    assert record.take() == {"solves": 0, "evaluations": 0, "fallbacks": 0}


def test_collocation_of_another_dynamics_is_refused():
    with pytest.raises(ValueError, match="needs a PositionDynamics, but `dynamics` is a Sinusoid"):
        solve(Sinusoid(), torch.ones(4), TIMES, solver="collocation")


@pytest.mark.parametrize("step", [0.001, 1.6])
def test_collocation_with_too_few_or_too_many_nodes_is_refused(step):
    dynamics, p0 = weak_flow()
    with pytest.raises(ValueError, match=f"between 0.025 and 0.8 for collocation, but is {step}"):
        solve(dynamics, p0, TIMES, solver="collocation", step_size=step)


# The choice


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_choice_is_exact_enough_and_the_coarsest_that_is(name, device, monkeypatch):
    candidates = choice_module.CANDIDATES[device]
    monkeypatch.setattr(choice_module, "CANDIDATES", {"cpu": candidates})
    dynamics, p0 = named_flow(name, dim=64)
    choice = choose(dynamics, p0, TIMES)
    assert choice.within()
    exact = copy.deepcopy(dynamics).double()
    truth = solve(exact, p0.detach().double(), TIMES, step_size=0.0125).detach()
    values = solve(dynamics, p0, TIMES, **choice.options).detach()
    assert float(row_errors(values, truth).max()) < 1e-3
    coarser = candidates[: candidates.index((choice.solver, choice.step_size))]
    for solver, step in coarser:
        monkeypatch.setattr(choice_module, "CANDIDATES", {"cpu": ((solver, step),)})
        assert not choose(dynamics, p0, TIMES).within()


@pytest.mark.parametrize("name", FLOWS)
def test_the_gradient_of_short_sentences_is_as_good_as_that_of_long_ones(name):
    dynamics, p0 = named_flow(name, dim=64)
    choice = choose(dynamics, p0, TIMES)
    exact, exact_p0 = copy.deepcopy(dynamics).double(), p0.detach().double().requires_grad_()
    for rows in (32, 48, 64, 96):
        weights = torch.zeros(len(TIMES), *p0.shape)
        weights[:rows] = torch.randn(rows, *p0.shape, generator=torch.Generator().manual_seed(5))
        _, gradient = values_and_gradient(dynamics, p0, weights, **choice.options)
        _, truth = values_and_gradient(exact, exact_p0, weights, step_size=0.0125)
        assert float((gradient - truth).norm() / truth.norm()) < 1e-2


def test_late_rows_do_not_hide_the_errors_of_the_first():
    dynamics, p0 = named_flow("linear", dim=64)
    with torch.no_grad():
        dynamics.weight1.mul_(4)
    exact = copy.deepcopy(dynamics).double()
    truth = solve(exact, p0.detach().double(), TIMES, step_size=0.0125).detach()
    assert float(truth[-1].norm() / truth[0].norm()) > 1e3
    choice = choose(dynamics, p0, TIMES)
    values = solve(dynamics, p0, TIMES, **choice.options).detach()
    assert float(row_errors(values, truth).max()) < 1e-3


@pytest.mark.parametrize("name", FLOWS)
def test_evaluation_is_finer_and_the_same_on_every_device(name, monkeypatch):
    monkeypatch.setattr(choice_module, "CANDIDATES", {})  # by device
    dynamics, p0 = named_flow(name, dim=64)
    choice = choose(dynamics, p0, TIMES, training=False)
    truth = solve(copy.deepcopy(dynamics).double(), p0.detach().double(), TIMES, step_size=0.005)
    values = solve(dynamics, p0, TIMES, **choice.options)
    assert float(row_errors(values.detach(), truth.detach()).max()) < 1e-4


def test_the_choice_depends_on_the_flow():
    chosen = {name: choose(*named_flow(name, dim=64), TIMES) for name in ("small", "oscillating")}
    assert chosen["small"].step_size > chosen["oscillating"].step_size


def test_without_gradients_only_values_count():
    dynamics, p0 = named_flow("linear")
    with torch.no_grad():
        choice = choose(dynamics, p0, TIMES, training=False)
    assert choice.gradient_error is None
    assert choose(dynamics.requires_grad_(False), p0.detach(), TIMES).gradient_error is None
    assert all(p.grad is None for p in dynamics.parameters())


def test_a_choice_leaves_gradients_and_random_numbers_alone():
    dynamics, p0 = named_flow("small")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    choose(dynamics, p0, TIMES)
    assert torch.equal(torch.rand(1), expected)
    assert p0.grad is None and all(p.grad is None for p in dynamics.parameters())


def test_a_flow_in_half_precision_is_measured_in_float32():
    dynamics, p0 = named_flow("small", dim=64)
    choice = choose(dynamics.half(), p0, TIMES)
    assert choice.within() and choice.gradient_error is not None


def test_a_flow_that_leaves_the_range_is_measured_as_far_as_it_goes():
    dynamics = PositionDynamics(4)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.zero_()
        dynamics.weight1[:, :4] = dynamics.weight2[:, :4] = 10 * torch.eye(
            4
        )  # p grows as e^(100 t)
    choice = choose(dynamics, torch.ones(1, 4), 0.1 * torch.arange(128, dtype=torch.float64))
    assert choice.num_times < 128
    assert choice.solver == "rk4_hermite"
