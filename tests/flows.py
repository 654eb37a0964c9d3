"""Small flows with a known solution or random parameters, their values and gradients. Not a test file."""

import torch
from torch import nn

from benchmarks.flows import standard_flows
from fairseq_floater.ode import PositionDynamics, solve

TIMES = 0.1 * torch.arange(96, dtype=torch.float64)
FLOWS = ("small", "linear", "attracted", "oscillating")

UNEVEN = torch.tensor([0.0, 0.03, 0.5, 0.77, 0.8, 1.9, 3.3, 3.4, 7.0], dtype=torch.float64)


class Sinusoid(nn.Module):
    """d/dt (sin wt, cos wt): a dynamics of t alone with a known solution."""

    def forward(self, t, p):
        w = torch.tensor([1.0, 0.3], dtype=p.dtype)
        return torch.cat([w * torch.cos(w * t), -w * torch.sin(w * t)]).expand_as(p)


def flow(dim=6, rows=(3, 2), seed=0, dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(seed)
    dynamics = PositionDynamics(dim, **options).to(dtype)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    p0 = torch.randn(*rows, dim, generator=generator, dtype=torch.float64).to(dtype)
    return dynamics, p0.requires_grad_()


def values_and_gradients(dynamics, p0, times, **options):
    dynamics.zero_grad()
    p0.grad = None
    trajectory = solve(dynamics, p0, times, **options)
    weights = torch.sin(torch.arange(trajectory.numel(), dtype=trajectory.dtype))
    (trajectory * weights.view_as(trajectory)).sum().backward()
    return trajectory.detach(), [p0.grad, *(p.grad for p in dynamics.parameters())]


def relative(actual, expected):
    return float((actual - expected).detach().norm() / expected.detach().norm())


class AsModule(nn.Module):
    """Hides the class of a dynamics, so that the engine differentiates by autograd."""

    def __init__(self, dynamics):
        super().__init__()
        self.dynamics = dynamics

    def forward(self, t, p):
        return self.dynamics(t, p)


def worst(actual, expected):
    """The largest relative difference of two lists of tensors."""
    return max(relative(one, other) for one, other in zip(actual, expected, strict=True))


def named_flow(name, dim=32, rows=6, seed=0):
    found = next(f for f in standard_flows(dim, rows, seed) if f.name == name)
    return found.dynamics, found.p0.requires_grad_()


def weak_flow(dim=6, rows=(3, 2)):
    dynamics, p0 = flow(dim=dim, rows=rows)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.mul_(0.5)
    return dynamics, p0


def values_and_gradient(dynamics, p0, weights, **options):
    """Return the values, and the gradient of <weights, values> by p0 and all parameters as one vector."""
    values = solve(dynamics, p0, TIMES, **options)
    inputs = [p0, *dynamics.parameters()]
    gradients = torch.autograd.grad(values, inputs, weights.to(values))
    return values.detach(), torch.cat([gradient.flatten() for gradient in gradients])
