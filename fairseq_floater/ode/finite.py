"""What happens where a flow leaves the range of its dtype.

The rule: a trajectory that is not finite stops the run. So does a gradient that was finite before it
went through the flow, and is not after. A gradient that comes in infinite or NaN (a model that
overflows under fairseq's loss scaling) is passed on: with ``--fp16`` and ``--amp`` fairseq skips that
update and lowers the scale, in float32 it stops by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ADVICE = (
    "Lower --floater-lr-scale or --floater-init-scale, raise --floater-time-scale (bounded time for "
    "long input), or take a smaller --floater-step-size."
)


class FlowError(FloatingPointError):
    """A flow that cannot be solved or differentiated; the message says when, and what to change."""


class NonFiniteTrajectoryError(FlowError):
    """The flow left the range of its dtype."""


class NonFiniteGradientError(FlowError):
    """The flow's gradient left the range of its dtype, on the way back from the last row to p(0)."""


class StiffFlowError(FlowError):
    """An adaptive solver needed more, or smaller, steps than it may take."""


def is_finite(values: Tensor) -> bool:
    """Whether all are: one reduction and one transfer, as a rule."""
    # An infinity or a NaN anywhere makes the sum non-finite; a finite sum of finite values can
    # overflow float32, hence the second look.
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def check_trajectory(trajectory: Tensor, times: Tensor) -> None:
    """Raise NonFiniteTrajectoryError for a value of [N, ..., C] that is not finite."""
    if is_finite(trajectory):
        return
    norms = trajectory.flatten(1).double().norm(dim=1)  # of large values they leave float32
    bad = int((~trajectory.flatten(1).isfinite().all(dim=1)).nonzero()[0])
    last = float(norms[bad - 1]) if bad else float("nan")
    raise NonFiniteTrajectoryError(
        f"The position flow is not finite from t = {float(times[bad]):.4g} (row {bad}) on; the norm "
        f"of the row before is {last:.4g}. {ADVICE}"
    )


def watch_gradient(
    step: Callable[[Tensor, Tensor], Tensor], p0: Tensor, times: Tensor, trajectory: Tensor
) -> None:
    """Put the gradient of ``trajectory`` [N, ..., C] with respect to ``p0`` [..., C] under the rule above.

    What leaves the range on the way to p(0) is not finite there: so p(0)'s gradient is looked at.

    Args:
        step: from (p, times [2]) to p at the second time, differentiable; says where it happened.
        p0: no leaf, so that nothing is left on it.
    """
    if not (p0.requires_grad and trajectory.requires_grad):
        return
    incoming: list[Tensor] = []
    # Detached: a hook that held its own graph would never be freed.
    values = trajectory.detach()
    trajectory.register_hook(incoming.append)

    def check(gradient: Tensor) -> None:
        if is_finite(gradient) or not is_finite(incoming[-1]):
            return
        row, norm = _where_it_explodes(step, times, values, incoming[-1])
        raise NonFiniteGradientError(
            "The gradient of the position flow is not finite: going back from the last row, it leaves "
            f"{gradient.dtype} at t = {float(times[row]):.4g} (row {row}); its norm one row later is "
            f"{norm:.4g}. {ADVICE}"
        )

    p0.register_hook(check)


def _where_it_explodes(
    step: Callable[[Tensor, Tensor], Tensor], times: Tensor, trajectory: Tensor, incoming: Tensor
) -> tuple[int, float]:
    """The last row whose gradient is not finite, and the norm of that of the row after it."""
    gradient = incoming[-1]
    for row in range(len(times) - 2, -1, -1):
        norm = float(gradient.double().norm())
        with torch.enable_grad():
            start = trajectory[row].detach().requires_grad_()
            (back,) = torch.autograd.grad(step(start, times[row : row + 2]), start, gradient)
        gradient = back + incoming[row]
        if not is_finite(gradient):
            return row, norm
    return 0, float(gradient.double().norm())


def solved_adaptively(solve: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
    """torchdiffeq's solution; it asserts where it gives up.

    Raises:
        StiffFlowError: instead of an AssertionError.
    """
    try:
        return solve(*args, **options)
    except AssertionError as error:
        raise StiffFlowError(
            f"The position flow is too stiff for the adaptive solver ({error}); --floater-solver auto "
            f"solves it in steps of measured error. {ADVICE}"
        ) from None
