"""Choose the engine and step for a flow by device and measured error: ``--floater-solver auto``.

The error of a step depends on the flow, and training changes the flow. A step of 0.4 is a hundred times
too fine for one flow and ten times too coarse for another. So `choose` takes the coarsest step whose
estimated errors are small enough, and `flow_solver.py` calls it again now and then.

Errors are estimated in windows: over the first 32 rows, the first 64, and so on. A row's error is relative
to the row's largest value. The gradient is that of a sum that weighs all rows of the window alike, and its
error is relative to its norm. A batch of sentences mixes such windows, so its gradient is no worse than
the worst window's. Over the whole table alone, the large late rows, which few sentences reach, would hide
the errors of the early rows.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_floater.ode.dynamics import PositionDynamics
from fairseq_floater.ode.engines import engines_for
from fairseq_floater.ode.finite import FlowError
from fairseq_floater.ode.solve import error_by_halving, solve
from fairseq_floater.ode.solve_record import SolveRecord

# Errors that are good enough in training: of a row, relative to its largest value; of a gradient,
# relative to its norm.
VALUE_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-2
# A row's error in evaluation, where a table is solved once and serves every sentence.
EVALUATION_TOLERANCE = 1e-4
# Rows of the shortest window.
SHORTEST_WINDOW = 32


def _candidates(case: str) -> tuple[tuple[str, float], ...]:
    # from the fastest to the most robust
    return tuple((e.name, step) for e in engines_for(case) for step in e.auto_steps[case])


# A CPU pays for each evaluation of h, a GPU for each round of them.
CANDIDATES = {device: _candidates(device) for device in ("cpu", "cuda")}
# The same on every device, so that a checkpoint has one set of scores.
EVALUATION_CANDIDATES = _candidates("evaluation")


@dataclass(frozen=True)
class Choice:
    """Hold an engine, its step and its estimated errors (infinite if the flow leaves its dtype's range).

    Attributes:
        solver: one of `ENGINES`.
        step_size: in units of time; None for an engine without one.
        value_error: the largest error of a row, relative to the row's largest value.
        gradient_error: the largest error of a window's gradient, relative to that gradient's norm; None
            if no gradient is wanted.
        num_times: how many times the errors were estimated over.
        record: what the parallel engine needed.
    """

    solver: str
    step_size: float | None
    value_error: float
    gradient_error: float | None
    num_times: int
    record: SolveRecord = field(default_factory=SolveRecord, compare=False)

    def is_exact_enough(self, tolerance: float | None = None) -> bool:
        """Return whether errors of values (None: VALUE_TOLERANCE) and gradient are small enough."""
        tolerance = VALUE_TOLERANCE if tolerance is None else tolerance
        return self.value_error <= tolerance and (
            self.gradient_error is None or self.gradient_error <= GRADIENT_TOLERANCE
        )

    @property
    def options(self) -> dict[str, Any]:
        return {"solver": self.solver, "step_size": self.step_size}


def choose(
    dynamics: PositionDynamics,
    p0: Tensor,
    times: Tensor,
    training: bool = True,
    candidates: Sequence[tuple[str, float]] = (),
) -> Choice:
    """Return the fastest engine and step whose estimated errors are small enough.

    If there is none, return the last and most robust candidate. If even this one leaves the range of its
    dtype, choose again over half as many times (no fewer than 16): the flow may still serve the
    sentences at hand.

    Args:
        dynamics: the flow.
        p0: [..., C]; errors of its gradient count if it requires one.
        times: [N] float64; errors are estimated over them.
        training: whether the flow is solved at every update, with a gradient if anything requires one.
            Otherwise it is solved once, for values alone, which have to be more exact.
        candidates: engines and steps, from the fastest to the most robust; by default the device's in
            training, the same on all devices in evaluation.
    """
    if not candidates:
        device = "cuda" if p0.is_cuda else "cpu"
        candidates = CANDIDATES[device] if training else EVALUATION_CANDIDATES
    tolerance = VALUE_TOLERANCE if training else EVALUATION_TOLERANCE
    # A copy in the dtype of the solve: in half precision a gradient could overflow.
    dynamics = copy.deepcopy(dynamics).to(p0.dtype)
    p0 = p0.detach().requires_grad_(p0.requires_grad)
    inputs = [x for x in (p0, *dynamics.parameters()) if training and x.requires_grad]
    windows = _windows(len(times)) if inputs else [len(times)]  # no row's error depends on others
    records: dict[tuple[str, float], SolveRecord] = defaultdict(
        partial(SolveRecord, check_each=True)
    )

    @cache
    def solution(solver: str, step: float, rows: int) -> _Solution:
        record = records[solver, step]
        return _solve_with_gradient(dynamics, p0, times[:rows], inputs, solver, step, record)

    def estimate(solver: str, step: float, rows: int) -> Choice:
        coarse, finer = solution(solver, step, rows), solution(solver, step / 2, rows)
        return Choice(solver, step, *_errors(coarse, finer), rows, records[solver, step])

    for solver, step in candidates:
        choice = estimate(solver, step, windows[0])
        for rows in windows[1:]:
            if choice.is_exact_enough(tolerance) or (solver, step) == candidates[-1]:
                choice = _worse(choice, estimate(solver, step, rows))
        if choice.is_exact_enough(tolerance):
            return choice
    if choice.value_error == float("inf") and len(times) >= 32:
        return choose(dynamics, p0, times[: len(times) // 2], training, candidates)
    return choice


def _windows(num_times: int) -> list[int]:
    """Return 32, 64, ... and all ``num_times`` rows."""
    doubled = [SHORTEST_WINDOW]
    while 2 * doubled[-1] < num_times:
        doubled.append(2 * doubled[-1])
    return [rows for rows in doubled if rows < num_times] + [num_times]


def _worse(one: Choice, other: Choice) -> Choice:
    """Return the larger errors of one engine over two windows; ``other`` is over the longer one."""
    gradient_error = other.gradient_error
    if gradient_error is not None and one.gradient_error is not None:
        gradient_error = max(gradient_error, one.gradient_error)
    return replace(
        other,
        value_error=max(one.value_error, other.value_error),
        gradient_error=gradient_error,
    )


class _Solution(NamedTuple):
    """Hold values [N, ..., C], and the gradient of a functional of them; None if unwanted or failed."""

    values: Tensor | None
    gradient: Tensor | None


def _solve_with_gradient(
    dynamics: PositionDynamics,
    p0: Tensor,
    times: Tensor,
    inputs: list[Tensor],
    solver: str,
    step: float,
    record: SolveRecord,
) -> _Solution:
    gradient, fallbacks = None, record.fallbacks
    try:
        with torch.set_grad_enabled(bool(inputs)):
            values = solve(dynamics, p0, times, solver=solver, step_size=step, record=record)
            if inputs:
                gradient = _functional_gradient(values, inputs)
    except FlowError:
        return _Solution(None, None)
    # If RK4 stood in, the values are not this engine's.
    rows = values.detach() if record.fallbacks == fallbacks else None
    return _Solution(rows, gradient)


def _errors(coarse: _Solution, finer: _Solution) -> tuple[float, float | None]:
    """Estimate the errors of values and gradient (None: not wanted); ``finer`` has half the step.

    Errors of values fall with the square of the step or faster, so they are at most 4/3 of the
    difference. Errors of the gradient come from ReLU bends that a grid misses by chance, and fall with
    the step. The two solutions' errors are then nearly independent, and the difference is 1.1 times
    the coarser solution's error.
    """
    value_error = float("inf")
    gradient_error = None if coarse.gradient is None else float("inf")
    if coarse.values is not None and finer.values is not None:
        value_error = error_by_halving(coarse.values, finer.values)
        if coarse.gradient is not None and finer.gradient is not None:
            gradient_error = _relative_difference(coarse.gradient, finer.gradient)
    return value_error, gradient_error


def _functional_gradient(values: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return the gradient of <G, values>, G normal and the same at every call, as one vector."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(values.shape, generator=generator).to(values)
    gradients = torch.autograd.grad(values, inputs, weights)
    return torch.cat([gradient.flatten() for gradient in gradients])


def _relative_difference(gradient: Tensor, finer: Tensor) -> float:
    # In float64: the squares of entries near 1e19 leave float32.
    gradient, finer = gradient.double(), finer.double()
    error = (gradient - finer).norm() / finer.norm().clamp(min=torch.finfo(finer.dtype).tiny)
    return float("inf") if error.isnan() else float(error)  # NaN: the difference of infinities
