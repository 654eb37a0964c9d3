"""The fast engines against autograd, exact solutions and each other."""

import copy
from typing import ClassVar

import pytest
import torch
from flows import (
    FLOWS,
    TIMES,
    AsModule,
    flow,
    named_flow,
    relative,
    values_and_gradient,
    values_and_gradients,
    weak_flow,
    worst,
)
from helpers import build, parts
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_floater.ode import ENGINES, TORCHDIFFEQ_SOLVERS, Clock, SolveRecord, solve
from fairseq_floater.ode.engines.collocation import MAX_ITERATIONS, TOLERANCE


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
    assert worst(gradients, references) < 1e-12


class Precision(TorchDispatchMode):
    """Record the dtype of matrix products, and the precision allowed for float32 on GPU and CPU."""

    seen: ClassVar[set] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::mm", "aten::addmm"):
            self.seen.add((args[-1].dtype, *allowed()))
        return func(*args, **(kwargs or {}))


def allowed():
    """Return the precision allowed for products of float32 on a GPU, and on a CPU."""
    backends = torch.backends.cuda, torch.backends.mkldnn
    return tuple(backend.matmul.fp32_precision for backend in backends)


@pytest.fixture
def inexact():
    """Allow inexact products as a training may; skip if torch lacks the settings."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch has no such settings")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    Precision.seen.clear()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("solver", ["adams", "collocation", "rk4_hermite"])
def test_products_of_solve_and_gradient_are_exact_where_the_trainings_are_not(inexact, solver):
    dynamics, p0 = named_flow("small")
    with Precision(), torch.autocast("cpu", dtype=torch.bfloat16):
        solve(dynamics, p0, TIMES[:20], solver=solver).sum().backward()
    assert {precision for _, *precisions in Precision.seen for precision in precisions} == {"ieee"}
    assert torch.bfloat16 not in {dtype for dtype, *_ in Precision.seen}
    assert allowed() == ("tf32", "bf16")


def test_products_of_a_closed_form_are_exact_where_the_trainings_are_not(inexact):
    """Repeated squaring with TF32's ten bits would not keep a rotation."""
    encoder = build("rotation_flow").encoder
    blocks = parts(encoder, "positions")
    with Precision():
        encoder.positions(200, blocks, torch.float32)
    assert Precision.seen == {(torch.float32, "ieee", "ieee")}


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


@pytest.mark.parametrize("solver", ENGINES)
@pytest.mark.parametrize("clock", [Clock(0.1), Clock(0.1, 6.0)], ids=["linear", "log"])
def test_a_row_does_not_depend_on_how_many_follow(solver, clock):
    dynamics, p0 = flow(dtype=torch.float32)
    with torch.no_grad():
        long = solve(dynamics, p0, clock.of_tokens(96), solver=solver)
        allowed = 1e-5 * float(long.abs().max()) if solver in TORCHDIFFEQ_SOLVERS else 0
        for count in (1, 2, 3, 17, 65, 95):
            short = solve(dynamics, p0, clock.of_tokens(count), solver=solver)
            assert float((short - long[:count]).abs().max()) <= allowed
