"""Stop a run whose flow leaves the range of its dtype.

The rule: a trajectory that is not finite stops the run. So does a gradient with respect to p(0) that is
not, where the one that came in from the model was. A gradient that comes in infinite or NaN (a model
that overflows under fairseq's loss scaling) is passed on, as is one of the dynamics' parameters that
overflows by itself: with ``--fp16`` and ``--amp`` fairseq skips that update and lowers the scale, in
float32 it stops by itself. torchdiffeq's adjoint goes back by another solve, with other errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# In the hidden form at 512 channels, row 2,000 of an untrained flow has norm 1e21: with a time scale of
# 100 4e20, with an initial scale of 0.01 6e4, with a delta of 0.03 4e6. In the qkv form the time scale
# divides it (6e4, of 100 6e2).
ADVICE = (
    "Train with a smaller --floater-delta, --floater-init-scale or --floater-lr-scale, in the qkv form "
    "also with a larger --floater-time-scale; --position-encoder rotation_flow keeps its norm at any length. "
    "A trained model needs shorter input."
)
_STEP = "Where the solve grew rather than the flow, a smaller --floater-step-size helps."


class FlowError(FloatingPointError):
    """Report a flow that cannot be solved or differentiated: when, and the remedy."""


class NonFiniteTrajectoryError(FlowError):
    """Report a flow that left the range of its dtype."""


class NonFiniteGradientError(FlowError):
    """Report a gradient that left the range of its dtype on the way back from the last row to p(0)."""


class StiffFlowError(FlowError):
    """Report an adaptive solver that needed more, or smaller, steps than it may take."""


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite: one reduction and one transfer, as a rule."""
    # An infinity or a NaN anywhere makes the sum non-finite; a finite sum of finite values can
    # overflow float32, hence the second look.
    return math.isfinite(float(values.sum())) or bool(values.isfinite().all())


def check_trajectory(trajectory: Tensor, times: Tensor) -> None:
    """Raise NonFiniteTrajectoryError for a value of [N, ..., C] that is not finite."""
    if is_finite(trajectory):
        return
    norms = trajectory.flatten(1).double().norm(dim=1)  # of large values they leave float32
    bad = int((~trajectory.flatten(1).isfinite().all(dim=1)).nonzero()[0])
    last = float(norms[bad - 1]) if bad else float("nan")
    raise NonFiniteTrajectoryError(
        f"The position flow is not finite from t = {float(times[bad]):.4g} (row {bad}) on; the norm "
        f"of the row before is {last:.4g}. {ADVICE} {_STEP}"
    )


def watch_gradient(
    step: Callable[[Tensor, Tensor], Tensor], p0: Tensor, times: Tensor, trajectory: Tensor
) -> None:
    """Hold the gradient of ``trajectory`` [N, ..., C] with respect to ``p0`` [..., C] to the rule above.

    Args:
        step: from (p, times [2]) to p at the second time, differentiable; says where it happened.
        p0: not a leaf, so that no hook stays on it.
        times: [N].
        trajectory: the solution.
    """
    if not (p0.requires_grad and trajectory.requires_grad):
        return
    incoming: list[Tensor] = []
    # Detached: a hook that held the graph it is part of would never be freed.
    values = trajectory.detach()

    # Where nothing depends on a value, some versions of torch pass None.
    def note(gradient: Tensor | None) -> None:
        incoming[:] = [] if gradient is None else [gradient.detach()]

    def check(gradient: Tensor | None) -> None:
        if gradient is None or not incoming or is_finite(gradient) or not is_finite(incoming[0]):
            return
        row, norm = _where_it_explodes(step, times, values, incoming[0])
        raise NonFiniteGradientError(
            "The gradient of the position flow is not finite: going back from the last row, it leaves "
            f"{gradient.dtype} at t = {float(times[row]):.4g} (row {row}); its norm one row later is "
            f"{norm:.4g}. {ADVICE} {_STEP}"
        )

    trajectory.register_hook(note)
    p0.register_hook(check)


def _where_it_explodes(
    step: Callable[[Tensor, Tensor], Tensor], times: Tensor, trajectory: Tensor, incoming: Tensor
) -> tuple[int, float]:
    """Find the last row whose gradient is not finite, and the norm of that of the row after it."""
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
