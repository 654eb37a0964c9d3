"""Solve the position flow, p(t) at given times, by any engine of `engines/`.

Our engines (`adams`, `collocation`, `rk4_hermite`) interpolate from their grid (`engines/hermite.py`)
and write out the gradient of the discrete solution. `auto.py` chooses an engine and its step by measured
error. torchdiffeq's engines are the reference. Our engines are of fourth order if no ReLU bends. Bends
leave errors of second order in the values and of first order in the gradient.

Gradients: ``direct`` (default) differentiates the discrete solution; ``adjoint`` solves the continuous
adjoint backwards in time (torchdiffeq only). The adjoint is approximate. It is also slower, because every
token needs a value and the adjoint solves once between each pair of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_floater.ode.engines import ENGINES
from fairseq_floater.ode.engines.rk4_hermite import solve_rk4_hermite
from fairseq_floater.ode.finite import check_trajectory, watch_gradient
from fairseq_floater.ode.precision import exact_products
from fairseq_floater.ode.solve_record import SolveRecord

TORCHDIFFEQ_SOLVERS = tuple(name for name, e in ENGINES.items() if e.solve_adjoint is not None)
GRADIENTS = ("direct", "adjoint")


def solve(
    dynamics: Callable[[Any, Tensor], Tensor],
    p0: Tensor,
    times: Tensor,
    *,
    solver: str = "rk4_hermite",
    step_size: float | None = None,
    gradient: str = "direct",
    record: SolveRecord | None = None,
) -> Tensor:
    """Solve dp/dt = dynamics(t, p), p(times[0]) = p0 (FLOATER, equation 8).

    Args:
        dynamics: maps a scalar time and p [..., C] to dp/dt [..., C]; for ``adjoint`` a Module.
        p0: [..., C], float32 or float64, the dtype of the computation.
        times: [N], finite and strictly increasing, not necessarily equidistant (appendix C). On the CPU
            in float64, checking them needs no device and large times are exact.
        solver: one of :data:`ENGINES`.
        step_size: in units of time; None for the engine's default.
        gradient: one of :data:`GRADIENTS`.
        record: counts evaluations, residuals and fallbacks, and holds what earlier solves needed.

    Returns:
        [N, ..., C]; row 0 is ``p0``. A row does not depend on how many rows follow it.

    Raises:
        ValueError: an unknown solver or gradient, times out of order, a dtype of low precision, or
            collocation of anything but a :class:`PositionDynamics`.
        FlowError: the flow cannot be solved or, in the backward pass, differentiated (`finite.py`).
    """
    step_size = checked_step_size(solver, step_size, gradient)
    times = _checked_times(times)
    if p0.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"`p0` must be float32 or float64, but is {p0.dtype} instead.")
    p0 = p0.view_as(p0)  # hooks would stay on p0 if it is a leaf
    engine = ENGINES[solver]
    run = engine.solve_adjoint if gradient == "adjoint" else engine.solve
    assert run is not None  # `checked_step_size` refuses it
    trajectory = p0.unsqueeze(0)
    if len(times) > 1:
        with exact_products():
            trajectory = run(dynamics, p0, times, step_size, record or SolveRecord())
    check_trajectory(trajectory.detach(), times)

    def step(start: Tensor, interval: Tensor) -> Tensor:
        size = float(interval.diff())
        with exact_products():
            return solve_rk4_hermite(dynamics, start, interval, size, SolveRecord())[-1]

    watch_gradient(step, p0, times, trajectory)
    return trajectory


def checked_step_size(solver: str, step_size: float | None, gradient: str) -> float | None:
    """Check arguments of :func:`solve` and return the step size that it takes.

    Raises:
        ValueError: solver, step and gradient do not go together.
    """
    if solver not in ENGINES:
        raise ValueError(
            f"`solver` must be one of {', '.join(ENGINES)}, but is {solver!r} instead."
        )
    if gradient not in GRADIENTS:
        raise ValueError(
            f"`gradient` must be one of {', '.join(GRADIENTS)}, but is {gradient!r} instead."
        )
    engine = ENGINES[solver]
    if gradient == "adjoint" and engine.solve_adjoint is None:
        raise ValueError(
            f"`gradient` adjoint needs a solver of torchdiffeq ({', '.join(TORCHDIFFEQ_SOLVERS)}), "
            f"but `solver` is {solver!r}, which has its own exact discrete gradient."
        )
    if step_size is None:
        return engine.default_step
    if engine.default_step is None:
        raise ValueError(f"`step_size` has no meaning for {solver}, which chooses its own steps.")
    if not 0 < step_size < float("inf"):
        raise ValueError(f"`step_size` must be positive, but is {step_size} instead.")
    if not engine.finest_step <= step_size <= engine.coarsest_step:
        raise ValueError(
            f"`step_size` must be between {engine.finest_step} and {engine.coarsest_step} for "
            f"{solver}, but is {step_size} instead."
        )
    return step_size


def step_halving_error(
    dynamics: Callable[[Any, Tensor], Tensor], p0: Tensor, times: Tensor, **options: Any
) -> float:
    """Estimate the largest relative error of a row that :func:`solve` returns for the same options.

    The estimate is 4/3 of the difference to a solve with half the step. It was 1.0 to 1.6 times the true
    error in every regime measured (local residuals were too small by up to 700 times). dopri5 has no step
    to halve, so its reference is RK4 at 0.02. If half a step is too fine for an engine, `rk4_hermite`
    takes it.
    """
    solver = options.get("solver", "rk4_hermite")
    step = checked_step_size(solver, options.get("step_size"), options.get("gradient", "direct"))
    finer: dict[str, Any]
    if step is None:
        finer = {"solver": "rk4"}
    elif step / 2 < ENGINES[solver].finest_step:
        finer = {"solver": "rk4_hermite", "step_size": step / 2}
    else:
        finer = {**options, "step_size": step / 2}
    with torch.no_grad():
        return error_by_halving(
            solve(dynamics, p0, times, **options), solve(dynamics, p0, times, **finer)
        )


def error_by_halving(coarse: Tensor, fine: Tensor) -> float:
    """Estimate the largest relative error of a row of ``coarse`` [N, ...]; ``fine`` has half its step."""
    return float(4 / 3 * row_errors(coarse, fine).max())


def row_errors(rows: Tensor, exact: Tensor) -> Tensor:
    """Divide the largest error in each row by the row's largest value: [N, ...] twice -> [N]."""
    scale = exact.flatten(1).abs().amax(1).clamp(min=torch.finfo(exact.dtype).tiny)
    return (rows - exact).flatten(1).abs().amax(1) / scale


def _checked_times(times: Tensor) -> Tensor:
    times = torch.as_tensor(times).detach().to("cpu", torch.float64)
    if times.dim() != 1 or len(times) == 0:
        raise ValueError(
            f"`times` must have shape [N], N >= 1, but has {list(times.shape)} instead."
        )
    values = times.numpy()  # calls of torch here would cost as much as calls on a GPU
    if not np.isfinite(values).all():
        raise ValueError("`times` must be finite, but holds a value that is not.")
    not_ahead = np.diff(values) <= 0
    if not_ahead.any():
        i = int(not_ahead.argmax())
        raise ValueError(
            "`times` must be strictly increasing, but "
            f"times[{i + 1}] = {float(times[i + 1]):.6g} follows times[{i}] = {float(times[i]):.6g}."
        )
    return times
