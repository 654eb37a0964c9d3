"""Solve by torchdiffeq: its RK4, midpoint and Dormand-Prince, with either gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.ode.dynamics import PositionDynamics, evaluate
from fairseq_floater.ode.engines.engine import Engine
from fairseq_floater.ode.finite import ADVICE, StiffFlowError
from fairseq_floater.ode.solve_record import SolveRecord

DOPRI5_TOLERANCE = 1e-5
# dopri5 gives up after so many steps; a stiff dynamics would otherwise run for ever.
DOPRI5_MAX_STEPS = 100_000
# Messages of the assertions by which torchdiffeq's adaptive solvers give up.
GIVEN_UP = ("underflow in dt", "max_num_steps exceeded", "non-finite values in state")


def _solve(
    dynamics: Callable[[Any, Tensor], Tensor],
    p0: Tensor,
    times: Tensor,
    step: float | None,
    record: SolveRecord,
    *,
    method: str,
    adjoint: bool = False,
) -> Tensor:
    """Compute p at ``times`` [N] by ``method`` of torchdiffeq: [N, ..., C].

    Raises:
        StiffFlowError: the adaptive solver gave up.
    """
    import torchdiffeq

    odeint = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint
    # The adjoint needs a Module, so its evaluations are not counted.
    counted = dynamics if adjoint else _Counted(dynamics)
    options: dict[str, Any] = {"max_num_steps": DOPRI5_MAX_STEPS}
    wanted = len(times)
    if step is not None:
        in_steps = (times - times[0]) / step
        is_on_grid = bool(((in_steps - in_steps.round()).abs() < 1e-6).all())
        # By default torchdiffeq interpolates linearly between its steps.
        options = {"step_size": step, "interp": "linear" if is_on_grid else "cubic"}
        if not is_on_grid:
            # torchdiffeq's last step ends at the last time, so a row would depend on how many follow.
            steps = math.floor(float(in_steps[-1]) + 1e-6) + 1
            times = torch.cat([times, times[:1] + steps * step])
    tolerances = {"rtol": DOPRI5_TOLERANCE, "atol": DOPRI5_TOLERANCE}
    try:
        trajectory = odeint(
            counted, p0, times.to(p0.device), method=method, options=options, **tolerances
        )
    except AssertionError as error:
        if not str(error).startswith(GIVEN_UP):
            raise
        reason = str(error).split(":")[0]
        raise StiffFlowError(
            f"The position flow is too stiff for the adaptive solver, or overflows {p0.dtype} ({reason}); "
            f"--floater-solver auto solves in steps of measured error. {ADVICE}"
        ) from None
    record.add(counted.evaluations if isinstance(counted, _Counted) else 0)
    return trajectory[:wanted]


class _Counted:
    """Count the evaluations of a dynamics.

    The coefficients of a :class:`PositionDynamics` are computed once. At every evaluation, they would
    leave thousands of copies of the weights for the backward pass.
    """

    def __init__(self, dynamics: Callable[[Any, Tensor], Tensor]):
        self.dynamics = dynamics
        if isinstance(dynamics, PositionDynamics):
            self.dynamics = partial(evaluate, dynamics.coefficients())
        self.evaluations = 0

    def __call__(self, t: Tensor, p: Tensor) -> Tensor:
        self.evaluations += 1
        return self.dynamics(t, p)


def _engine(name: str, summary: str, step: float | None) -> Engine:
    return Engine(
        name=name,
        summary=f"torchdiffeq's {summary}",
        solve=partial(_solve, method=name),
        solve_adjoint=partial(_solve, method=name, adjoint=True),
        default_step=step,
    )


RK4 = _engine("rk4", "RK4 (3/8 rule), the paper's solver", 0.02)  # 0.1 / 5, as in the paper
MIDPOINT = _engine("midpoint", "midpoint", 0.02)
DOPRI5 = _engine("dopri5", "adaptive Dormand-Prince 5(4)", None)
