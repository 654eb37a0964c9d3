"""Solve by classic Runge-Kutta 4 on a uniform grid, interpolated onto any times (`hermite.py`).

For an arbitrary right-hand side, autograd differentiates the steps. For :class:`PositionDynamics`
`TwoLayerFlow` writes out the same discrete gradient: it keeps only the grid values, recomputes the
stages of many steps at once, and forms the gradients of the weights by large products, once a chunk
of steps instead of once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_floater.ode.dynamics import DynamicsCoefficients, PositionDynamics, slope_in_place
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.engines.hermite import HermiteGrid
from fairseq_floater.ode.precision import exact_products
from fairseq_floater.ode.solve_record import SolveRecord

Slope = Callable[[float, Tensor], Tensor]

# Steps whose stages the backward pass holds at once: 64 * 4 stages * 24 rows * 512 floats are 12 MiB.
STEPS_PER_CHUNK = 64


def integrate_on_grid(
    slope: Slope, p0: Tensor, grid: HermiteGrid, multistep: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """Integrate from ``p0`` [..., C]; return values and slopes [K + 1, ..., C] on the grid.

    By RK4, or with ``multistep`` by that weighted sum of the last slopes, latest first; RK4 then takes
    the first steps.
    """
    p, values, slopes = p0, [p0], []
    for k in range(grid.num_steps):
        slopes.append(slope(grid.time(k), p))
        if multistep and len(slopes) >= len(multistep):
            p = p + grid.step * sum(b * slopes[k - j] for j, b in enumerate(multistep))
        else:
            p = rk4_step(slope, grid.time(k), p, slopes[k], grid.step)
        values.append(p)
    slopes.append(slope(grid.time(grid.num_steps), p))
    return torch.stack(values), torch.stack(slopes)


def rk4_step(slope: Slope, t: float, p: Tensor, f1: Tensor, step: float) -> Tensor:
    """Step from ``p`` [..., C] at time ``t`` by ``step``; ``f1`` = h(t, p) is known."""
    f2 = slope(t + step / 2, p + step / 2 * f1)
    f3 = slope(t + step / 2, p + step / 2 * f2)
    f4 = slope(t + step, p + step * f3)
    return p + step / 6 * (f1 + 2 * (f2 + f3) + f4)


def solve_rk4_hermite(
    dynamics: Any, p0: Tensor, times: Tensor, step: float, record: SolveRecord
) -> Tensor:
    """Compute p at ``times`` [N]: [N, ..., C]; see the module docstring.

    Args:
        dynamics: ``dynamics(t, p) -> dp/dt``; a :class:`PositionDynamics` gets the written-out gradient.
        p0: [..., C], float32 or float64.
        times: [N] float64, increasing.
        step: grid spacing; stable if spectral radius * step < 2.78, accurate if < 0.2.
        record: counts evaluations.
    """
    grid = HermiteGrid.kept(times, step, p0)
    record.add(4 * grid.num_steps + 1)
    if isinstance(dynamics, PositionDynamics):
        return TwoLayerFlow.apply(p0, grid, *dynamics.coefficients())
    return grid.interpolate(*integrate_on_grid(dynamics, p0, grid))


class TwoLayerFlow(torch.autograd.Function):
    """Solve for h = relu(p W1' + c1(t)) W2' + c2(t), c(t) = t * time + bias, rows [R, C]."""

    @staticmethod
    def forward(ctx: Any, p0: Tensor, grid: HermiteGrid, *coefficients: Tensor) -> Tensor:
        h = DynamicsCoefficients(*coefficients)
        rows = p0.reshape(-1, p0.shape[-1])
        values, slopes = integrate_on_grid(slope_in_place(h), rows, grid)
        ctx.save_for_backward(values, slopes, *coefficients)
        ctx.grid = grid
        return grid.interpolate(values, slopes).reshape(-1, *p0.shape)

    @staticmethod
    @once_differentiable
    @exact_products()
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, slopes, *coefficients = ctx.saved_tensors
        h, grid = DynamicsCoefficients(*coefficients), ctx.grid
        grad_values, grad_slopes = grid.transpose(grad.reshape(len(grad), -1, grad.shape[-1]))
        total = [torch.zeros_like(c) for c in coefficients]

        # The last grid point has a slope but no step.
        final = Rk4Stage(h, grid.times[-1:], values[-1:])
        running = grad_values[-1] + final.pull_back(0, grad_slopes[-1])
        final.accumulate(total)

        for first in range(grid.num_steps, 0, -STEPS_PER_CHUNK):
            chunk = range(max(first - STEPS_PER_CHUNK, 0), first)
            stages = rk4_stages(h, grid, chunk, values, slopes)
            for k in reversed(chunk):
                running = rk4_step_back(
                    stages, k - chunk.start, grid.step, running, grad_values[k], grad_slopes[k]
                )
            for stage in stages:
                stage.accumulate(total)
        return (running.reshape(grad.shape[1:]), None, *total)


class Rk4Stage:
    """Hold one RK4 stage of consecutive steps: its inputs, and the gradients at it so far.

    Shapes: ``t`` [S], ``x`` [S, R, C] for S steps; the stage's output is ``slope()`` [S, R, C].
    """

    def __init__(self, h: DynamicsCoefficients, t: Tensor, x: Tensor):
        self.h, self.t, self.x = h, t, x
        bias = t[:, None, None] * h.time1 + h.bias1
        self.hidden = torch.relu(x @ h.w1.T + bias)
        self.grad_out = torch.empty_like(x)
        self.grad_pre = torch.empty_like(x)

    def slope(self) -> Tensor:
        return self.hidden @ self.h.w2.T + (self.t[:, None, None] * self.h.time2 + self.h.bias2)

    def pull_back(self, s: int, grad: Tensor) -> Tensor:
        """Pull a gradient [R, C] of step ``s``'s output back to its input; keep it for `accumulate`."""
        self.grad_out[s] = grad
        torch.mul(grad @ self.h.w2, self.hidden[s] > 0, out=self.grad_pre[s])
        return self.grad_pre[s] @ self.h.w1

    def accumulate(self, total: list[Tensor]) -> None:
        accumulate_coefficients(total, self.t, self.x, self.hidden, self.grad_pre, self.grad_out)


def accumulate_coefficients(
    total: list[Tensor], t: Tensor, x: Tensor, hidden: Tensor, grad_pre: Tensor, grad_out: Tensor
) -> None:
    """Add the gradients of the coefficients, in the order of :class:`DynamicsCoefficients`.

    Shapes: ``t`` [S] are the times of S evaluations of h. Their inputs ``x``, their hidden layers, and
    the gradients before the ReLU and of the result are [S, R, C].
    """
    dim = x.shape[-1]
    for offset, grad, inputs in ((0, grad_pre, x), (3, grad_out, hidden)):
        total[offset].addmm_(grad.reshape(-1, dim).T, inputs.reshape(-1, dim))
        per_step = grad.sum(1)
        total[offset + 1].add_(t @ per_step)
        total[offset + 2].add_(per_step.sum(0))


def rk4_stages(
    h: DynamicsCoefficients, grid: HermiteGrid, chunk: range, values: Tensor, slopes: Tensor
) -> list[Rk4Stage]:
    """Recompute the four stages of the steps in ``chunk`` side by side from the grid values."""
    step = grid.step
    t = grid.times[chunk.start : chunk.stop]
    p, f1 = values[chunk.start : chunk.stop], slopes[chunk.start : chunk.stop]
    first = Rk4Stage(h, t, p)
    second = Rk4Stage(h, t + step / 2, p + step / 2 * f1)
    third = Rk4Stage(h, t + step / 2, p + step / 2 * second.slope())
    fourth = Rk4Stage(h, t + step, p + step * third.slope())
    return [first, second, third, fourth]


def rk4_step_back(
    stages: list[Rk4Stage],
    s: int,
    step: float,
    running: Tensor,
    grad_value: Tensor,
    grad_slope: Tensor,
) -> Tensor:
    """Pull a gradient [R, C] at the end of step ``s`` back to its start (discrete adjoint of RK4)."""
    first, second, third, fourth = stages
    d4 = fourth.pull_back(s, step / 6 * running)
    d3 = third.pull_back(s, step / 3 * running + step * d4)
    d2 = second.pull_back(s, step / 3 * running + step / 2 * d3)
    d1 = first.pull_back(s, step / 6 * running + step / 2 * d2 + grad_slope)
    return running + d1 + d2 + d3 + d4 + grad_value


ENGINE = Engine(
    name="rk4_hermite",
    summary="RK4 on its own grid; for the strongest flows",
    solve=solve_rk4_hermite,
    default_step=0.2,
    auto_steps={"cpu": (0.1, 0.05), "cuda": (0.1, 0.05), "evaluation": (0.0125,)},
)
