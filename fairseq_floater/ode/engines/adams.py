"""Solve by Adams-Bashforth of fourth order on a uniform grid: one evaluation of h a step.

A step of RK4 costs four evaluations of h. If a ReLU bends within the step, the error falls with the
square of the step only, as for any other method. For the same cost, Adams takes four steps of a quarter
of the size, p_{k+1} = p_k + step * sum_j b_j h_{k-j}, and so meets each bend in a smaller step. The
first three steps have no history and are RK4's. Values and slopes on the grid are interpolated
as in `hermite.py`, so a row does not depend on how many rows follow it.

The discrete solution is differentiated. For :class:`PositionDynamics` it is written out: a step
back takes one product with each transposed weight, and large products at the end give the gradients of
the weights. Each step's value and hidden layer are kept: 2 K R C numbers for K steps of R rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_floater.ode.dynamics import DynamicsCoefficients, PositionDynamics, slope_in_place
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.engines.hermite import HermiteGrid, constant_like
from fairseq_floater.ode.engines.rk4_hermite import (
    accumulate_coefficients,
    integrate_on_grid,
    rk4_stages,
    rk4_step,
    rk4_step_back,
)
from fairseq_floater.ode.precision import exact_products
from fairseq_floater.ode.solve_record import SolveRecord

# Weights of h_k, h_{k-1}, h_{k-2}, h_{k-3} in the integral of the cubic through them over the next step.
WEIGHTS = (55 / 24, -59 / 24, 37 / 24, -9 / 24)
STARTING_STEPS = len(WEIGHTS) - 1


def solve_adams(
    dynamics: Any, p0: Tensor, times: Tensor, step: float, record: SolveRecord
) -> Tensor:
    """Compute p at ``times``; arguments and result are those of `solve_rk4_hermite`.

    Stable if the spectral radius of dh/dp times the step is below 0.3 (RK4: 2.78).
    """
    grid = HermiteGrid.kept(times, step, p0)
    record.add(grid.num_steps + 1 + 3 * min(grid.num_steps, STARTING_STEPS))
    if isinstance(dynamics, PositionDynamics):
        return _TwoLayerAdams.apply(p0, grid, *dynamics.coefficients())
    return grid.interpolate(*integrate_on_grid(dynamics, p0, grid, WEIGHTS))


class _TwoLayerAdams(torch.autograd.Function):
    """Solve for h = relu(p W1' + c1(t)) W2' + c2(t), c(t) = t * time + bias, rows [R, C]."""

    @staticmethod
    def forward(ctx: Any, p0: Tensor, grid: HermiteGrid, *coefficients: Tensor) -> Tensor:
        h = DynamicsCoefficients(*coefficients)
        rows = p0.reshape(-1, p0.shape[-1])
        values, slopes, hidden = _integrate_two_layers(h, rows, grid)
        kept_slopes = slopes[:STARTING_STEPS].clone()  # not a view, so that the rest is freed
        ctx.save_for_backward(values, kept_slopes, hidden, *coefficients)
        ctx.grid = grid
        return grid.interpolate(values, slopes).reshape(-1, *p0.shape)

    @staticmethod
    @once_differentiable
    @exact_products()
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, first_slopes, hidden, *coefficients = ctx.saved_tensors
        h, grid = DynamicsCoefficients(*coefficients), ctx.grid
        grad_values, grad_slopes = grid.transpose(grad.reshape(len(grad), -1, grad.shape[-1]))
        total = [torch.zeros_like(c) for c in coefficients]

        # Values beyond the last one have no gradient. Rows of zeros for them avoid a special case.
        room = grad_values.new_zeros(len(WEIGHTS), *grad_values.shape[1:])
        at_values = torch.cat([grad_values, room])
        at_hidden = torch.empty_like(hidden)
        weights = constant_like(grid.step * torch.tensor(WEIGHTS, dtype=torch.float64), values)
        first = min(STARTING_STEPS, grid.num_steps)
        for k in range(grid.num_steps, first - 1, -1):
            # Row k: the gradient goes from values k + 1 ... k + 4 to slope k, and through h to value k.
            _add_combination(grad_slopes[k], at_values[k + 1 : k + 5], weights)
            torch.mm(grad_slopes[k], h.w2, out=at_hidden[k])
            at_hidden[k].mul_(hidden[k] > 0)
            if k < grid.num_steps:
                at_values[k] += at_values[k + 1]
            at_values[k].addmm_(at_hidden[k], h.w1)
        accumulate_coefficients(
            total,
            grid.times[first:],
            values[first:],
            hidden[first:],
            at_hidden[first:],
            grad_slopes[first:],
        )

        running = at_values[first]
        stages = rk4_stages(h, grid, range(first), values, first_slopes)
        for k in reversed(range(first)):
            later = STARTING_STEPS - k  # index of slope k's weight in the first Adams step
            _add_combination(grad_slopes[k], at_values[k + 1 + later : k + 5], weights[later:])
            running = rk4_step_back(stages, k, grid.step, running, grad_values[k], grad_slopes[k])
        for stage in stages:
            stage.accumulate(total)
        return (running.reshape(grad.shape[1:]), None, *total)


def _integrate_two_layers(
    h: DynamicsCoefficients, p0: Tensor, grid: HermiteGrid
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute values, slopes and hidden layers [K + 1, R, C] on the grid, in place."""
    w1, w2 = h.w1.T.contiguous(), h.w2.T.contiguous()
    t = grid.times[:, None]
    bias1, bias2 = t * h.time1 + h.bias1, t * h.time2 + h.bias2
    values = p0.new_empty(grid.num_steps + 1, *p0.shape)
    slopes, hidden = torch.empty_like(values), torch.empty_like(values)
    # Weights in the order of the slopes in memory: h_{k-3} ... h_k.
    weights = constant_like(grid.step * torch.tensor(WEIGHTS[::-1], dtype=torch.float64), p0)

    slope = slope_in_place(h)  # for the first steps only
    values[0] = p0
    for k in range(grid.num_steps + 1):
        torch.addmm(bias1[k], values[k], w1, out=hidden[k])
        torch.addmm(bias2[k], hidden[k].relu_(), w2, out=slopes[k])
        if k == grid.num_steps:
            break
        if k < STARTING_STEPS:
            values[k + 1] = rk4_step(slope, grid.time(k), values[k], slopes[k], grid.step)
        else:
            values[k + 1] = values[k]
            _add_combination(values[k + 1], slopes[k - STARTING_STEPS : k + 1], weights)
    return values, slopes, hidden


def _add_combination(target: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Add sum_j weights[j] * rows[j] to ``target`` [R, C], in one kernel."""
    target.view(-1).addmv_(rows.flatten(1).T, weights)


ENGINE = Engine(
    name="adams",
    summary="Adams-Bashforth 4, one evaluation of h a step; for CPUs",
    solve=solve_adams,
    default_step=0.1,
    auto_steps={
        "cpu": (0.4, 0.2, 0.1, 0.05, 0.025),
        # For flows on which the parallel engine does not converge: half of RK4's kernels.
        "cuda": (0.1, 0.05, 0.025),
        "evaluation": (0.4, 0.2, 0.1, 0.05, 0.025, 0.0125),
    },
    benchmark_steps=(0.1, 0.2, 0.4),
)
