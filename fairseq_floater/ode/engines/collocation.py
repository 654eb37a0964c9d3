"""Solve on all grid points of a segment at once: few rounds of h in a row, for GPUs.

A segment of time has n steps. Its unknown values X [n, R, C] satisfy

    X = x0 + step * (q0 h(x0) + Q h(X)),

where row i of (q0, Q) integrates the local cubic through the slopes from the segment's start to grid
point i: fourth order, like RK4. Iterating on that equation (Picard) stops converging when training
has made the flow strong, so the residual is first multiplied by the inverse of 1 - step * Q (x) J, with one
Jacobian J = W2 diag(mean of the ReLU's mask) W1 a segment: a quasi-Newton iteration. The inverse is a
product, (1 - A)^-1 = (1 + A)(1 + A^2)(1 + A^4)..., and A^2 = (step Q)^2 (x) J^2: no factorisation, and
nothing kept from earlier updates. The gradient solves the transposed equation in the same way.

Segments are always solved whole and begin at the first time, so a row does not depend on how many
rows were asked for, but for this: where the iteration fails on any segment, RK4 does the whole solve,
and its rows differ by the error of the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_floater.ode.dynamics import DynamicsCoefficients, PositionDynamics
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.engines.hermite import HermiteGrid, constant_like
from fairseq_floater.ode.engines.quadrature import powers_of, quadrature
from fairseq_floater.ode.engines.rk4_hermite import accumulate_coefficients, solve_two_layers
from fairseq_floater.ode.solve_record import SolveRecord

# Units of time a segment; 64 tokens at the default delta.
SEGMENT = 6.4
COARSEST_STEP = SEGMENT / 8
# The matrices over a segment's nodes are dense.
FINEST_STEP = SEGMENT / 256
# The residual that the iteration may leave, relative to the largest value (or gradient).
TOLERANCE = 1e-5
# Iterations in each segment, at most.
MAX_ITERATIONS = 24
# The step of RK4 where it stands in.
FALLBACK_STEP = 0.1


def solve_collocation(
    dynamics: PositionDynamics, p0: Tensor, times: Tensor, step: float, record: SolveRecord
) -> Tensor:
    """Compute p at ``times`` [N]: [N, ..., C]; see the module docstring.

    The iteration goes on until the residual is below :data:`TOLERANCE`; where that takes more than
    :data:`MAX_ITERATIONS`, RK4 does the solve (or the gradient) instead. Looking after each
    iteration would hold up a GPU: there ``record.iterations`` are made, and the residual is looked at
    once, at the end of the solve. The backward pass, whose equation converges alike, makes two
    iterations more and does not look (`finite.py` does, once).

    Args:
        dynamics: two linear layers with a ReLU; others have no parallel solve.
        p0: [..., C], float32 or float64.
        times: [N] float64, increasing.
        step: grid spacing in units of time, at most :data:`COARSEST_STEP`.
        record: keeps residuals and fallbacks.

    Raises:
        ValueError: ``dynamics`` is no :class:`PositionDynamics`.
    """
    if not isinstance(dynamics, PositionDynamics):
        raise ValueError(
            "`solver` collocation needs a PositionDynamics, but `dynamics` is a "
            f"{type(dynamics).__name__} instead."
        )
    look = record.look
    if look is None:
        look = not (p0.is_cuda and torch.is_grad_enabled())
    coefficients = dynamics.coefficients()
    solved: Tensor = _ParallelFlow.apply(p0, times, step, record, look, *coefficients)
    return solved


class _ParallelFlow(torch.autograd.Function):
    """Solve for h = relu(p W1' + c1(t)) W2' + c2(t), c(t) = t * time + bias, rows [R, C]."""

    @staticmethod
    def forward(
        ctx: Any,
        p0: Tensor,
        times: Tensor,
        step: float,
        record: SolveRecord,
        look: bool,
        *coefficients: Tensor,
    ) -> Tensor:
        h = DynamicsCoefficients(*coefficients)
        rows = p0.reshape(-1, p0.shape[-1])
        steps = round(SEGMENT / step)
        grid = HermiteGrid(times, step, p0, multiple=steps)
        t = grid.times_like(rows)
        iterator = _Iterator(steps, grid.step, rows, None if look else record.iterations)
        segments, values, slopes, rounds = [], [rows[None]], [], 0
        x0 = rows
        for first in range(0, grid.num_steps, steps):
            segment = _Segment(h, t[first : first + steps + 1], x0, iterator)
            rounds += segment.iterations + 3  # its first slope, the mask, and the last residual
            segments.append(segment)
            values.append(segment.x[1:])
            slopes.append(segment.slopes[:-1])
            x0 = segment.x[-1]
        residual = torch.stack([segment.residual for segment in segments]).max()
        slopes.append(segments[-1].slopes[-1:])
        record.add(rounds)
        ctx.save_for_backward(p0, times, *coefficients)
        ctx.fell_back = not float(residual) <= TOLERANCE  # NaN as well
        if ctx.fell_back:
            record.fallbacks += 1
            record.iterations = min(record.iterations + 2, MAX_ITERATIONS)
            return _by_rk4(p0, times, coefficients)
        record.add_residual(residual)
        if look:
            needed = max(segment.iterations for segment in segments)
            record.iterations_needed = max(record.iterations_needed, needed)
        ctx.grid, ctx.segments, ctx.record, ctx.look = grid, segments, record, look
        solved = grid.interpolate(torch.cat(values), torch.cat(slopes))
        return solved.reshape(-1, *p0.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        p0, times, *coefficients = ctx.saved_tensors
        nothing = (None,) * 4
        if ctx.fell_back:
            at_p0, *total = _gradient_by_rk4(p0, times, coefficients, grad)
            return (at_p0, *nothing, *total)
        total = [torch.zeros_like(c) for c in coefficients]
        grad_values, grad_slopes = ctx.grid.transpose(grad.reshape(len(grad), -1, grad.shape[-1]))
        running = grad_values[-1]
        steps = len(ctx.segments[0].t) - 1
        residuals = []
        for index in reversed(range(len(ctx.segments))):
            first = index * steps
            at_values = grad_values[first : first + steps + 1].clone()
            at_values[-1] = running
            at_slopes = grad_slopes[first : first + steps + 1].clone()
            if index < len(ctx.segments) - 1:
                at_slopes[-1] = 0  # the next segment's first slope is the same, and had it
            running, residual = ctx.segments[index].pull_back(at_values, at_slopes, total)
            residuals.append(residual)
        residual = torch.stack(residuals).max()
        if not ctx.look:
            ctx.record.add_residual(residual)
        # What comes in may not be finite, in half precision when the loss scale is too large.
        elif not float(residual) <= TOLERANCE and bool(grad.isfinite().all()):
            ctx.record.fallbacks += 1
            at_p0, *total = _gradient_by_rk4(p0, times, coefficients, grad)
            return (at_p0, *nothing, *total)
        return (running.reshape(grad.shape[1:]), *nothing, *total)


class _Iterator:
    """Iterate as forward and backward both do (quasi-Newton), on n nodes of R rows.

    Args:
        steps: n.
        step: grid spacing.
        like: gives dtype and device.
        count: iterations to make without looking; None to look after each.
    """

    def __init__(self, steps: int, step: float, like: Tensor, count: int | None):
        first, powers = quadrature(steps)
        self.first = constant_like(step * first, like)[:, None, None]  # q0
        since_start = step * torch.arange(1, steps + 1, dtype=torch.float64)
        self.since_start = constant_like(since_start, like)[:, None, None]
        self.powers = [constant_like(step ** (2**j) * q, like) for j, q in enumerate(powers)]
        self.count = count

    def over_nodes(self, matrix: Tensor, x: Tensor, plus: Tensor) -> Tensor:
        """Return plus + matrix x: [n, n] times [n, R, C]."""
        return torch.addmm(plus.flatten(1), matrix, x.flatten(1)).view_as(x)

    def solve(
        self, equation: Any, x: Tensor, jacobians: list[Tensor], transposed: bool
    ) -> tuple[Tensor, Tensor, int]:
        """Iterate ``x`` until ``equation(x)``, its residual, is small.

        Also returns the relative residual [] and the number of iterations; `equation` was last
        called with the ``x`` that is returned.
        """
        limit = MAX_ITERATIONS if self.count is None else self.count + 2 * transposed
        for iterations in range(limit + 1):
            residual = equation(x)
            # The maximum of NaN is NaN, which is not below the tolerance.
            relative = residual.abs().max() / x.abs().max().clamp(min=torch.finfo(x.dtype).tiny)
            done = self.count is None and float(relative) <= TOLERANCE
            if done or iterations == limit:
                break
            for q, jacobian in zip(self.powers, jacobians):
                q, jacobian = (q.T, jacobian) if transposed else (q, jacobian.T)
                residual = self.over_nodes(q, residual @ jacobian, residual)
            x = x + residual
        return x, relative, iterations


class _Segment:
    """Solve one segment, and keep what its gradient needs.

    Shapes: times ``t`` [n + 1], its first value ``x0`` [R, C]; ``x``, ``slopes`` and ``hidden``
    [n + 1, R, C].
    """

    def __init__(self, h: DynamicsCoefficients, t: Tensor, x0: Tensor, iterator: _Iterator):
        self.h, self.t, self.iterator = h, t, iterator
        shape = (len(t), *x0.shape)
        bias1 = (t[:, None, None] * h.time1 + h.bias1).expand(shape)
        bias2 = (t[:, None, None] * h.time2 + h.bias2).expand(shape)
        hidden0 = torch.addmm(bias1[0], x0, h.w1.T).relu_()
        slope0 = torch.addmm(bias2[0], hidden0, h.w2.T)
        # One addmm an evaluation takes the bias of every node and row.
        flat1, flat2 = bias1[1:].reshape(-1, x0.shape[-1]), bias2[1:].reshape(-1, x0.shape[-1])
        constant = x0 + iterator.first * slope0
        last: dict[str, Tensor] = {}

        def evaluate(x: Tensor) -> None:
            last["hidden"] = torch.addmm(flat1, x.flatten(0, 1), h.w1.T).relu_()
            last["slopes"] = torch.addmm(flat2, last["hidden"], h.w2.T).view_as(x)

        def equation(x: Tensor) -> Tensor:
            evaluate(x)
            return iterator.over_nodes(iterator.powers[0], last["slopes"], constant - x)

        guess = x0 + iterator.since_start * slope0
        evaluate(guess)
        self.jacobians = powers_of(h.w2 @ ((last["hidden"] > 0).to(x0).mean(0)[:, None] * h.w1))
        x, self.residual, self.iterations = iterator.solve(equation, guess, self.jacobians, False)
        self.x = torch.cat([x0[None], x])
        self.slopes = torch.cat([slope0[None], last["slopes"]])
        self.hidden = torch.cat([hidden0[None], last["hidden"].view_as(x)])

    def pull_back(
        self, at_values: Tensor, at_slopes: Tensor, total: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Pull gradients of values and slopes [n + 1, R, C] back to the first value [R, C].

        Adds the gradients of the coefficients to ``total``; also returns the relative residual [].
        """
        h, iterator = self.h, self.iterator
        open_units = self.hidden > 0
        back = iterator.powers[0].T
        last: dict[str, Tensor] = {}

        def equation(grad: Tensor) -> Tensor:
            """Return the residual in the slopes' gradient: direct, and through the values they add up to."""
            last["before_relu"] = (grad @ h.w2) * open_units[1:]
            last["values"] = at_values[1:] + last["before_relu"] @ h.w1
            return iterator.over_nodes(back, last["values"], at_slopes[1:] - grad)

        guess = iterator.over_nodes(back, at_values[1:], at_slopes[1:])
        grad, residual, _ = iterator.solve(equation, guess, self.jacobians, True)
        grad0 = at_slopes[0] + (iterator.first * last["values"]).sum(0)
        before_relu0 = (grad0 @ h.w2) * open_units[0]
        accumulate_coefficients(
            total,
            self.t,
            self.x,
            self.hidden,
            torch.cat([before_relu0[None], last["before_relu"]]),
            torch.cat([grad0[None], grad]),
        )
        return at_values[0] + last["values"].sum(0) + before_relu0 @ h.w1, residual


def _by_rk4(p0: Tensor, times: Tensor, coefficients: Any) -> Tensor:
    return solve_two_layers(p0, HermiteGrid(times, FALLBACK_STEP, p0), *coefficients)


def _gradient_by_rk4(
    p0: Tensor, times: Tensor, coefficients: Any, grad: Tensor
) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in (p0, *coefficients)]
    with torch.enable_grad():
        solved = _by_rk4(inputs[0], times, inputs[1:])
    return torch.autograd.grad(solved, inputs, grad)


ENGINE = Engine(
    name="collocation",
    summary="all grid points of a segment at once; for GPUs",
    solve=solve_collocation,
    default_step=0.2,
    finest_step=FINEST_STEP,
    coarsest_step=COARSEST_STEP,
    auto_steps={"cuda": (0.4, 0.2, 0.1)},
    benchmark_steps=(0.1, 0.2, 0.4),
)
