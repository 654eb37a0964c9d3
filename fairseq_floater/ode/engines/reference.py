"""The reference engine: torchdiffeq's RK4, midpoint and Dormand-Prince, and its adjoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from fairseq_floater.ode.dynamics import PositionDynamics, evaluate
from fairseq_floater.ode.finite import solved_adaptively
from fairseq_floater.ode.solve_record import SolveRecord

DOPRI5_TOLERANCE = 1e-5
# Where dopri5 gives up: a stiff dynamics would otherwise run for ever.
DOPRI5_MAX_STEPS = 100_000


def solve_torchdiffeq(
    dynamics: Callable[[Any, Tensor], Tensor],
    p0: Tensor,
    times: Tensor,
    solver: str,
    step_size: float | None,
    gradient: str,
    record: SolveRecord,
) -> Tensor:
    import torchdiffeq

    counted = _Counted(dynamics) if gradient == "direct" else dynamics
    options: dict[str, Any] = {}
    if step_size is None:
        options["max_num_steps"] = DOPRI5_MAX_STEPS
    else:
        options["step_size"] = step_size
    odeint = torchdiffeq.odeint_adjoint if gradient == "adjoint" else torchdiffeq.odeint
    trajectory = solved_adaptively(
        odeint,
        counted,
        p0,
        times.to(p0.device),
        method=solver,
        rtol=DOPRI5_TOLERANCE,
        atol=DOPRI5_TOLERANCE,
        options=options,
    )
    record.add(counted.evaluations if isinstance(counted, _Counted) else 0)
    return trajectory


class _Counted:
    """A dynamics that counts its evaluations. (The adjoint wants a Module, and goes uncounted.)

    The coefficients of a :class:`PositionDynamics` are put together once, not at every evaluation:
    else thousands of copies of the weights would wait for the backward pass.
    """

    def __init__(self, dynamics: Callable[[Any, Tensor], Tensor]):
        self.dynamics = dynamics
        if isinstance(dynamics, PositionDynamics):
            self.dynamics = partial(evaluate, dynamics.coefficients())
        self.evaluations = 0

    def __call__(self, t: Tensor, p: Tensor) -> Tensor:
        self.evaluations += 1
        return self.dynamics(t, p)
