"""The engine and step for a flow, by device and measured error: what ``--floater-solver auto`` means.

The error of a step depends on the flow, and training changes the flow: a step of 0.4 is a hundred times too
fine for one and ten times too coarse for another. So the coarsest step is taken whose estimated
errors are small enough, and the owner of the flow asks again now and then.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.ode.dynamics import PositionDynamics
from fairseq_floater.ode.finite import FlowError
from fairseq_floater.ode.record import SolveRecord
from fairseq_floater.ode.solve import error_by_halving, solve

# Errors that are good enough: of values, relative to the largest; of the gradient, relative to its norm.
VALUE_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-2

# From the fastest on. A CPU pays for each evaluation of h, a GPU for each round of them.
_ROBUST = (("rk4_hermite", 0.1), ("rk4_hermite", 0.05))
CANDIDATES = {
    "cpu": (("adams", 0.4), ("adams", 0.2), ("adams", 0.1), ("adams", 0.05), *_ROBUST),
    "cuda": (("collocation", 0.4), ("collocation", 0.2), ("collocation", 0.1), *_ROBUST),
}


@dataclass(frozen=True)
class Choice:
    """An engine, its step, and its estimated errors (infinite where the flow leaves its dtype's range).

    Attributes:
        solver: one of `SOLVERS`.
        step_size: in units of time; None for an engine without one.
        value_error: of the largest value.
        gradient_error: of the gradient's norm; None where no gradient was asked for.
        num_times: over how many times they were estimated.
        iterations: that the parallel engine needed; 0 for others.
    """

    solver: str
    step_size: float | None
    value_error: float
    gradient_error: float | None
    num_times: int
    iterations: int = 0

    @property
    def good_enough(self) -> bool:
        return self.value_error <= VALUE_TOLERANCE and (
            self.gradient_error is None or self.gradient_error <= GRADIENT_TOLERANCE
        )

    @property
    def options(self) -> dict[str, Any]:
        """For `solve`."""
        return {"solver": self.solver, "step_size": self.step_size}


def choose(dynamics: PositionDynamics, p0: Tensor, times: Tensor, gradients: bool = True) -> Choice:
    """The fastest engine and step whose estimated errors are small enough.

    If none is, the last and most robust, with its errors; if even that leaves the range of its
    dtype, the choice is made over half as many times (not less than 16): a flow that could not go as far
    may serve the sentences at hand.

    Args:
        dynamics: the flow.
        p0: [..., C]; whether to look at gradients with respect to it follows from `requires_grad`.
        times: [N] float64: over which errors are estimated.
        gradients: whether the gradient counts; if nothing requires one, it does not.
    """
    candidates = CANDIDATES["cuda" if p0.is_cuda else "cpu"]
    # A copy in the dtype of the solve: in half precision a gradient could overflow.
    dynamics = copy.deepcopy(dynamics).to(p0.dtype)
    p0 = p0.detach().requires_grad_(p0.requires_grad)
    inputs = [x for x in (p0, *dynamics.parameters()) if gradients and x.requires_grad]
    measured: dict[tuple[str, float], _Solution] = {}

    def solution(solver: str, step: float) -> _Solution:
        key = (solver, step)
        if key not in measured:
            measured[key] = _Solution(dynamics, p0, times, inputs, solver, step)
        return measured[key]

    for solver, step in candidates:
        choice = solution(solver, step).compared_with(solution(solver, step / 2))
        if choice.good_enough:
            return choice
    if choice.value_error == float("inf") and len(times) >= 32:
        return choose(dynamics, p0, times[: len(times) // 2], gradients)
    return choice


class _Solution:
    """Values [N, ..., C] by one engine, and the gradient of a fixed random functional of them."""

    def __init__(
        self,
        dynamics: PositionDynamics,
        p0: Tensor,
        times: Tensor,
        inputs: list[Tensor],
        solver: str,
        step: float,
    ):
        self.solver, self.step, self.num_times = solver, step, len(times)
        self.gradient: Tensor | None = None
        self.record = SolveRecord(look=True)
        try:
            with torch.set_grad_enabled(bool(inputs)):
                values = solve(
                    dynamics, p0, times, solver=solver, step_size=step, record=self.record
                )
                if inputs:
                    self.gradient = _functional_gradient(values, inputs)
            # Where RK4 stood in, the engine that was asked gave nothing.
            self.values: Tensor | None = None if self.record.fallbacks else values.detach()
        except FlowError:
            self.values = None

    def compared_with(self, finer: _Solution) -> Choice:
        """The estimated errors of this one, ``finer`` having half the step.

        Errors of values fall with the square of the step or faster, so they are at most 4/3 of the
        difference. Those of the gradient come from bends that a grid misses by chance and fall with
        the step: the errors of the two solutions are as good as independent, and the difference is
        1.1 times the coarser one's.
        """
        value_error = gradient_error = float("inf")
        if self.values is not None and finer.values is not None:
            value_error = error_by_halving(self.values, finer.values)
            if self.gradient is not None and finer.gradient is not None:
                norm = finer.gradient.norm().clamp(min=torch.finfo(finer.gradient.dtype).tiny)
                gradient_error = float((self.gradient - finer.gradient).norm() / norm)
        asked = self.gradient is not None
        return Choice(
            self.solver,
            self.step,
            _or_infinite(value_error),
            _or_infinite(gradient_error) if asked else None,
            self.num_times,
            self.record.iterations_needed,
        )


def _functional_gradient(values: Tensor, inputs: list[Tensor]) -> Tensor:
    """Of <G, values>, G normal and the same at every call; all inputs in one vector."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(values.shape, generator=generator).to(values)
    gradients = torch.autograd.grad(values, inputs, weights)
    return torch.cat([gradient.flatten() for gradient in gradients])


def _or_infinite(error: float) -> float:
    """NaN is the difference of infinities."""
    return error if error == error else float("inf")
