"""Stop a run whose flow leaves the range of its dtype.

Two things stop the run: a trajectory that is not finite, and a gradient of p(0) that became infinite or
NaN inside the flow. Other bad gradients are passed on: those that came from the model (which may overflow
under fairseq's loss scaling), and those of h's parameters. With ``--fp16`` and ``--amp`` fairseq then skips
the update and lowers the scale; in float32 it stops. torchdiffeq's adjoint solves again backwards, with
further errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Norm of row 2,000 of an untrained flow with 512 channels. Hidden form: 1e21; with time scale 100: 4e20;
# with initial scale 0.01: 6e4; with delta 0.03: 4e6. The qkv form: 6e4; with time scale 100: 6e2, because
# the time scale divides it.
ADVICE = (
    "Train with --floater-time log or a smaller --floater-delta, --floater-init-scale or --floater-lr-scale, "
    "in the qkv form also with a larger --floater-time-scale; --position-encoder rotation_flow keeps its "
    "norm at any length. A trained model needs shorter input."
)
_STEP = "If the solver diverged and not the flow, pass a smaller --floater-step-size."


class FlowError(FloatingPointError):
    """Report a flow that cannot be solved or differentiated; the message names the time and a remedy."""


class NonFiniteTrajectoryError(FlowError):
    """Report a flow that left the range of its dtype."""


class NonFiniteGradientError(FlowError):
    """Report a gradient that left the range of its dtype on the way back from the last row to p(0)."""


class StiffFlowError(FlowError):
    """Report an adaptive solver that needed more, or smaller, steps than it may take."""


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, usually by one reduction and one transfer."""
    # An infinity or a NaN anywhere makes the sum non-finite. The sum of finite values can overflow
    # float32, hence the second check.
    return math.isfinite(float(values.sum())) or bool(values.isfinite().all())


def check_trajectory(trajectory: Tensor, times: Tensor) -> None:
    """Raise NonFiniteTrajectoryError if any value of [N, ..., C] is not finite."""
    if is_finite(trajectory):
        return
    norms = trajectory.flatten(1).double().norm(dim=1)  # norms of large values overflow float32
    bad = int((~trajectory.flatten(1).isfinite().all(dim=1)).nonzero()[0])
    last = float(norms[bad - 1]) if bad else float("nan")
    raise NonFiniteTrajectoryError(
        f"The position flow is not finite from t = {float(times[bad]):.4g} (row {bad}) on; the norm "
        f"of the row before is {last:.4g}. {ADVICE} {_STEP}"
    )


def watch_gradient(
    step: Callable[[Tensor, Tensor], Tensor], p0: Tensor, times: Tensor, trajectory: Tensor
) -> None:
    """Apply the module's rule to the gradient of ``trajectory`` [N, ..., C] with respect to ``p0`` [..., C].

    Args:
        step: maps (p, times [2]) to p at the second time, differentiably; finds the row for the message.
        p0: not a leaf, so that no hook stays on it.
        times: [N].
        trajectory: the solution.
    """
    if not (p0.requires_grad and trajectory.requires_grad):
        return
    incoming: list[Tensor] = []
    # Detached: a hook that held the graph it is part of would never be freed.
    values = trajectory.detach()

    # Some versions of torch pass None if nothing depends on a value.
    def note(gradient: Tensor | None) -> None:
        incoming[:] = [] if gradient is None else [gradient.detach()]

    def check(gradient: Tensor | None) -> None:
        if gradient is None or not incoming or is_finite(gradient) or not is_finite(incoming[0]):
            return
        row, norm = _where_gradient_overflows(step, times, values, incoming[0])
        raise NonFiniteGradientError(
            "The gradient of the position flow is not finite: from the last row back, it overflows "
            f"{gradient.dtype} at t = {float(times[row]):.4g} (row {row}); its norm one row later is "
            f"{norm:.4g}. {ADVICE} {_STEP}"
        )

    trajectory.register_hook(note)
    p0.register_hook(check)


def _where_gradient_overflows(
    step: Callable[[Tensor, Tensor], Tensor], times: Tensor, trajectory: Tensor, incoming: Tensor
) -> tuple[int, float]:
    """Return the last row whose gradient is not finite, and the norm of the next row's gradient."""
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
