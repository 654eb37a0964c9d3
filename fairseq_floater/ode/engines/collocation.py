"""Solve all grid points of a segment at once, so that few evaluations of h wait for another; for GPUs.

A segment of time has n steps. Its unknown values X [n, R, C] satisfy

    X = x0 + step * (q0 h(x0) + Q h(X)).

Row i of (q0, Q) integrates the local cubic through the slopes from the segment's start to grid point i.
This is of fourth order, like RK4. Picard iteration on the equation takes four kernels a round and
converges over 256 tokens at once while the flow is as weak as at the start of training. If training has
made it strong, segments are cut to 64 tokens and the residual is first multiplied by the inverse of
1 - step * Q (x) J, with one Jacobian J = W2 diag(mean of the ReLU's mask) W1 a segment. This is a
quasi-Newton iteration. The inverse is a product, (1 - A)^-1 = (1 + A)(1 + A^2)(1 + A^4)..., with
A^2 = (step Q)^2 (x) J^2. It needs no factorisation and nothing from earlier updates. The gradient
solves the transposed equation in the same way.

Segments are always solved whole and begin at the first time, so a row does not depend on how many
rows follow it. The exception: if the iteration fails on any segment, shorter segments or RK4 do the
whole solve. Its rows then differ by the residual that the iteration leaves, or by the error of the step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_floater.ode.dynamics import DynamicsCoefficients, PositionDynamics
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.engines.hermite import HermiteGrid
from fairseq_floater.ode.engines.rk4_hermite import TwoLayerFlow
from fairseq_floater.ode.engines.segment import (
    MAX_ITERATIONS,
    TOLERANCE,
    Iterated,
    Segment,
    kept_nodes,
    relative,
)
from fairseq_floater.ode.precision import exact_products
from fairseq_floater.ode.solve_record import SolveRecord

# Length of a strong flow's segment, in units of time: 64 tokens at the default delta.
SEGMENT = 6.4
COARSEST_STEP = SEGMENT / 8
# The matrices over a segment's nodes are dense.
MOST_NODES = 512
FINEST_STEP = SEGMENT / MOST_NODES
# A weak flow's segment is this many times as long, or as long as MOST_WIDE_NODES nodes reach, if that is
# longer than a strong flow's.
WIDE, MOST_WIDE_NODES = 4, 256
# The step of RK4 when it stands in, unless the user asked for a finer one.
FALLBACK_STEP = 0.1


def solve_collocation(
    dynamics: PositionDynamics, p0: Tensor, times: Tensor, step: float, record: SolveRecord
) -> Tensor:
    """Compute p at ``times`` [N]: [N, ..., C]; see the module docstring.

    The iteration stops when the residual is below :data:`TOLERANCE`. If that takes more than
    :data:`MAX_ITERATIONS`, RK4 does the solve (or the gradient) instead. Checking the residual after each
    iteration would stall a GPU. Training on a GPU therefore does ``record.iterations`` iterations on long or
    short segments (``record.wide``), and checks the residual at the end of the solve and of its gradient.

    Args:
        dynamics: two linear layers with a ReLU; others have no parallel solve.
        p0: [..., C], float32 or float64.
        times: [N] float64, increasing.
        step: grid spacing in units of time, at most :data:`COARSEST_STEP`.
        record: keeps residuals and fallbacks.

    Raises:
        ValueError: ``dynamics`` is not a :class:`PositionDynamics`.
    """
    if not isinstance(dynamics, PositionDynamics):
        raise ValueError(
            "`solver` collocation needs a PositionDynamics, but `dynamics` is a "
            f"{type(dynamics).__name__} instead."
        )
    check_each = record.check_each
    if check_each is None:
        check_each = not (p0.is_cuda and torch.is_grad_enabled())
    coefficients = dynamics.coefficients()
    return _ParallelFlow.apply(p0, times, step, record, check_each, *coefficients)


class _ParallelFlow(torch.autograd.Function):
    """Solve for h = relu(p W1' + c1(t)) W2' + c2(t), c(t) = t * time + bias, rows [R, C]."""

    @staticmethod
    def forward(
        ctx: Any,
        p0: Tensor,
        times: Tensor,
        step: float,
        record: SolveRecord,
        check_each: bool,
        *coefficients: Tensor,
    ) -> Tensor:
        rows = p0.reshape(-1, p0.shape[-1])
        ctx.save_for_backward(p0, times, *coefficients)
        ctx.record, ctx.check_each, ctx.solution, ctx.step = record, check_each, None, step
        rounds = 0
        for wide in (True, False) if check_each else (record.wide,):
            solution = _SegmentedSolution(coefficients, rows, times, step, wide)
            solution.integrate(None if check_each else record.iterations)
            rounds += solution.rounds
            if solution.residual <= TOLERANCE:
                ctx.solution = solution
                break
        record.add(rounds)
        if ctx.solution is None:
            record.fall_back(MAX_ITERATIONS)
            return _by_rk4(p0, times, step, coefficients)
        _note(record, check_each, solution)
        return solution.grid.interpolate_joined(solution.flow).reshape(-1, *p0.shape)

    @staticmethod
    @once_differentiable
    @exact_products()
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p0, times, *coefficients = ctx.saved_tensors
        record, solution, nothing = ctx.record, ctx.solution, (None,) * 4
        if solution is not None:
            count = None if ctx.check_each else record.iterations
            rows = grad.reshape(len(grad), -1, grad.shape[-1])
            at_p0, total = solution.pull_back(rows, count)
            # In half precision, a loss scale that is too large makes the incoming gradient not finite.
            if solution.residual <= TOLERANCE or not bool(grad.isfinite().all()):
                _note(record, ctx.check_each, solution)
                return (at_p0.reshape(grad.shape[1:]), *nothing, *total)
            record.fall_back(MAX_ITERATIONS)
        at_p0, *total = _gradient_by_rk4(p0, times, ctx.step, coefficients, grad)
        return (at_p0, *nothing, *total)


def _note(record: SolveRecord, check_each: bool, solution: _SegmentedSolution) -> None:
    if check_each:
        record.note(solution.wide, solution.iterations)
    record.add_residual(solution.residual)


class _SegmentedSolution:
    """Hold values and slopes on the grid, and the segments, which pull their gradient back.

    Args:
        coefficients: of h.
        p0: rows [R, C].
        times: at which the solution is wanted.
        step: grid spacing.
        wide: whether segments are long and solved by Picard iteration.
    """

    def __init__(
        self, coefficients: tuple[Tensor, ...], p0: Tensor, times: Tensor, step: float, wide: bool
    ):
        self.h, self.wide = DynamicsCoefficients(*coefficients), wide
        steps = round(SEGMENT / step)
        self.steps = max(steps, min(WIDE * steps, MOST_WIDE_NODES)) if wide else steps
        self.grid = HermiteGrid.kept(times, step, p0, multiple=self.steps)
        points = self.grid.num_steps + 1
        self.flow = p0.new_empty(2 * points, *p0.shape)  # values, then slopes
        self.values, self.slopes = self.flow.chunk(2)
        self.values[0] = p0
        self.segments: list[Segment] = []
        self.residual, self.rounds, self.iterations = math.inf, 0, 0

    def integrate(self, count: int | None) -> None:
        """Integrate from p(0) by ``count`` iterations a segment (None: as many as needed)."""
        h, shape = self.h, self.values.shape
        biases = [
            torch.addr(bias, self.grid.times, time)[:, None].expand(shape).contiguous()
            for bias, time in ((h.bias1, h.time1), (h.bias2, h.time2))
        ]
        hidden = torch.empty_like(self.values)
        nodes = kept_nodes(self.steps, self.grid.step, hidden.dtype, hidden.device)
        iterated_segments = []
        for at in self._places():
            known = (self.values[at], self.slopes[at], hidden[at])
            segment = Segment(h, nodes, known, plain=self.wide)
            iterated_segments.append(segment.solve((biases[0][at], biases[1][at]), count))
            self.segments.append(segment)
        self._finish(iterated_segments)

    def pull_back(self, grad: Tensor, count: int | None) -> tuple[Tensor, list[Tensor]]:
        """Pull a gradient [N, R, C] back to p(0) [R, C] and the coefficients; ``count`` as above."""
        gradient = self.grid.transpose(grad)
        running = gradient[0, -1]
        total: list[Tensor] = []
        iterated_segments: list[Iterated] = []
        for at, segment in reversed(list(zip(self._places(), self.segments))):
            if iterated_segments:
                gradient[0, at.stop - 1] = running
                # The next segment begins with this slope and already took its gradient.
                gradient[1, at.stop - 1] = 0
            running, hidden, slopes, iterated = segment.pull_back(gradient[:, at], count)
            iterated_segments.append(iterated)
            gradients = []
            for of_layer, inputs in ((hidden, segment.values), (slopes, segment.hidden)):
                gradients.append(of_layer.flatten(0, 1).T @ inputs.flatten(0, 1))
                gradients += (self.grid.times_and_ones[:, at] @ of_layer.sum(1)).unbind()
            total = [a + b for a, b in zip(total, gradients)] if total else gradients
        self._finish(iterated_segments)
        return running, total

    def _places(self) -> list[slice]:
        """Return the grid points of each segment, first and last included."""
        starts = range(0, self.grid.num_steps, self.steps)
        return [slice(start, start + self.steps + 1) for start in starts]

    def _finish(self, iterated_segments: list[Iterated]) -> None:
        """Read the residual once for all segments, and count iterations and evaluations."""
        self.residual = relative([one.sizes for one in iterated_segments])
        self.iterations = max(one.iterations for one in iterated_segments)
        self.rounds = sum(one.iterations + 2 for one in iterated_segments)  # with the first slope's


def _by_rk4(p0: Tensor, times: Tensor, step: float, coefficients: Any) -> Tensor:
    grid = HermiteGrid.kept(times, min(step, FALLBACK_STEP), p0)
    return TwoLayerFlow.apply(p0, grid, *coefficients)


def _gradient_by_rk4(
    p0: Tensor, times: Tensor, step: float, coefficients: Any, grad: Tensor
) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in (p0, *coefficients)]
    with torch.enable_grad():
        solved = _by_rk4(inputs[0], times, step, inputs[1:])
    return torch.autograd.grad(solved, inputs, grad)


ENGINE = Engine(
    name="collocation",
    summary="all grid points of a segment at once; for GPUs",
    solve=solve_collocation,
    default_step=0.2,
    finest_step=FINEST_STEP,
    coarsest_step=COARSEST_STEP,
    auto_steps={"cuda": (0.4, 0.2, 0.1, 0.05, 0.025)},
    benchmark_steps=(0.025, 0.05, 0.1, 0.2, 0.4),
)
