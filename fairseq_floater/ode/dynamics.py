"""Define the right-hand side h(t, p; theta) of the position flow dp/dt = h (FLOATER, equation 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Standard deviation of the first layer's weights if the second layer starts at zero.
FIRST_LAYER_STD = 0.01


class DynamicsCoefficients(NamedTuple):
    """Hold h(t, p) = relu(p @ w1.T + t * time1 + bias1) @ w2.T + t * time2 + bias2, float32 or float64.

    Shapes: ``w1``, ``w2`` [C, C]; the other four [C].
    """

    w1: Tensor
    time1: Tensor
    bias1: Tensor
    w2: Tensor
    time2: Tensor
    bias2: Tensor


class RescaledModule(nn.Module):
    """Multiply the learning rate of a module's direct parameters u: the module uses theta = lr_scale * u.

    Adam's step does not depend on the size of a gradient, so a step of u by lr is a step of theta
    by lr_scale * lr. This is exact for Adam except for its epsilon, weight decay, and gradient clipping,
    which sees lr_scale times the gradient. fairseq's optimisers flatten parameters, which rules out
    gradient hooks and parameter groups.

    The state dict holds the scale, so a checkpoint loaded under another scale keeps theta.
    The scale is a Python float, because ``.half()`` would round a buffer.
    """

    def __init__(self, lr_scale: float = 1.0):
        super().__init__()
        if not lr_scale > 0:
            raise ValueError(f"`lr_scale` must be positive, but is {lr_scale} instead.")
        self.lr_scale = float(lr_scale)

    def scaled(self, parameter: Tensor) -> Tensor:
        """Return theta for the parameter u; a scale of 1 costs no kernel."""
        return parameter if self.lr_scale == 1 else parameter * self.lr_scale

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "lr_scale"] = torch.tensor(self.lr_scale, dtype=torch.float64)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        state_dict = dict(state_dict)  # the caller's checkpoint stays as it is
        saved: Tensor | None = state_dict.pop(prefix + "lr_scale", None)
        if saved is not None and float(saved) != self.lr_scale:
            for name, _ in self.named_parameters(recurse=False):
                value: Tensor | None = state_dict.get(prefix + name)
                if value is not None:
                    theta = value.double() * float(saved)
                    state_dict[prefix + name] = (theta / self.lr_scale).to(value.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class PositionDynamics(RescaledModule):
    """Apply two linear layers with a ReLU between them; time is appended to the input of each layer.

    The paper says "two FFN and one nonlinearity". We infer from its parameter count,
    2 * ((C + 1) * C + C) = 526,336 at C = 512 (Table 6), that time is appended to *both* layers.

    Shapes: ``forward(t, p)`` takes a scalar ``t`` (in units of time, one token being ``delta``)
    and ``p`` [..., C] and returns dp/dt [..., C] in the dtype of ``p``.

    Args:
        dim: C, the width of a position vector.
        time_scale: h sees ``t / time_scale``; larger values keep its input small on long inputs.
        lr_scale: learning-rate multiple of the parameters, see :class:`RescaledModule`.
        autonomous: no layer sees the time, and the weights have no column for it.
    """

    def __init__(
        self, dim: int, time_scale: float = 1.0, lr_scale: float = 1.0, autonomous: bool = False
    ):
        super().__init__(lr_scale)
        if not time_scale > 0:
            raise ValueError(f"`time_scale` must be positive, but is {time_scale} instead.")
        self.dim = dim
        self.time_scale = float(time_scale)
        columns = dim if autonomous else dim + 1
        self.weight1 = nn.Parameter(torch.empty(dim, columns))
        self.bias1 = nn.Parameter(torch.empty(dim))
        self.weight2 = nn.Parameter(torch.empty(dim, columns))
        self.bias2 = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self, std: float | None = None) -> None:
        """Initialise h near zero, or as ``nn.Linear`` does.

        With ``std`` both weights are normal with this standard deviation and the biases are zero, so a
        flow from p(0) = 0 stays near zero. With ``std`` 0 only the second layer's weights are zero: if
        both layers' were, no gradient would ever reach the first. Without ``std`` all parameters are
        uniform within 1 / sqrt(C + 1), the default of ``nn.Linear(C + 1, C)``.
        """
        bound = self.weight1.size(1) ** -0.5
        with torch.no_grad():
            for parameter in (self.weight1, self.bias1, self.weight2, self.bias2):
                if std is None:
                    parameter.uniform_(-bound, bound)
                elif parameter is self.weight1:
                    parameter.normal_(0.0, std or FIRST_LAYER_STD)
                elif parameter is self.weight2:
                    parameter.normal_(0.0, std)
                else:
                    parameter.zero_()
                parameter.div_(self.lr_scale)

    def start_linear(self, generator: Tensor, reach: int = 2) -> None:
        """Initialise to dp/dt = A p while every entry of p is above -``reach``; A is ``generator`` [C, C].

        h = A relu(p + reach) - reach A 1. No ReLU bends, and adding 2 costs entries of p few digits.
        Products by a power of two are exact, so a row of zeros stays zero.
        """
        with torch.no_grad():
            self.weight1.copy_(torch.eye(self.dim, self.weight1.size(1)) / self.lr_scale)
            self.bias1.fill_(reach / self.lr_scale)
            self.weight2.zero_()[:, : self.dim] = generator / self.lr_scale
            self.bias2.copy_(-reach * self.weight2.sum(dim=1))

    def coefficients(self) -> DynamicsCoefficients:
        """Return differentiable coefficients in at least float32, with both scales folded in."""
        dtype = torch.promote_types(self.weight1.dtype, torch.float32)

        def layer(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            weight, bias = (self.scaled(parameter.to(dtype)) for parameter in (weight, bias))
            if weight.size(1) == self.dim:
                return weight, torch.zeros_like(bias), bias
            # One kernel joins the two gradients of a split; slices would take five.
            of_p, of_time = weight.split([self.dim, 1], dim=1)
            time = of_time.squeeze(1)
            return of_p, time if self.time_scale == 1 else time / self.time_scale, bias

        return DynamicsCoefficients(
            *layer(self.weight1, self.bias1), *layer(self.weight2, self.bias2)
        )

    def forward(self, t: Tensor | float, p: Tensor) -> Tensor:
        return evaluate(self.coefficients(), t, p)


class BackwardDynamics(PositionDynamics):
    """Follow another dynamics h backwards from its start: dp/ds = -h(-s, p), with s = -t.

    It has the parameters of h.
    """

    def __init__(self, ahead: PositionDynamics):
        nn.Module.__init__(self)
        self.ahead = ahead

    def coefficients(self) -> DynamicsCoefficients:
        h = self.ahead.coefficients()
        return h._replace(time1=-h.time1, w2=-h.w2, bias2=-h.bias2)


def slope_in_place(h: DynamicsCoefficients) -> Callable[[float, Tensor], Tensor]:
    """Return a function that computes h(t, p) of rows ``p`` [R, C] without a graph, in few kernels."""
    w1, w2 = h.w1.T.contiguous(), h.w2.T.contiguous()

    def slope(t: float, p: Tensor) -> Tensor:
        hidden = torch.addmm(torch.add(h.bias1, h.time1, alpha=t), p, w1).relu_()
        return torch.addmm(torch.add(h.bias2, h.time2, alpha=t), hidden, w2)

    return slope


def evaluate(h: DynamicsCoefficients, t: Tensor | float, p: Tensor) -> Tensor:
    """Evaluate h(t, p) from its coefficients; ``p`` [..., C] -> [..., C]."""
    hidden = torch.relu(p @ h.w1.T + (t * h.time1 + h.bias1))
    return hidden @ h.w2.T + (t * h.time2 + h.bias2)
