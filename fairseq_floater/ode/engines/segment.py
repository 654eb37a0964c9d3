"""Iterate on one segment of `collocation.py` with few kernels and few checks of the residual.

Letters: n nodes after the segment's first, R rows, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_floater.ode.dynamics import DynamicsCoefficients
from fairseq_floater.ode.engines.hermite import constant_like
from fairseq_floater.ode.kept import keep

# The residual that the iteration may leave, relative to the largest value (or gradient).
TOLERANCE = 1e-5
# Most iterations in a segment.
MAX_ITERATIONS = 24
# Factors of the inverse's product; three give 2^3 = 8 terms of its series. With more factors, no flow
# that we tried needed fewer iterations over 64 tokens.
DOUBLINGS = 3
_TINY = torch.finfo(torch.float32).tiny
_Map = Callable[[Tensor], Tensor]


class Iterated(NamedTuple):
    """Hold the last iterate x [n, R, C], the largest values [2] of its residual and of x, and a count."""

    x: Tensor
    sizes: Tensor
    iterations: int


def iterate(advance: _Map, x: Tensor, correct: _Map | None, count: int | None) -> Iterated:
    """Solve x = advance(x).

    Args:
        advance: the equation's right side.
        x: a guess.
        correct: maps the residual advance(x) - x to the update of x; None: the residual is the update.
        count: iterations to make without a check; None: check the residual after each, and stop when it is
            below :data:`TOLERANCE`, or after :data:`MAX_ITERATIONS`.
    """
    limit = MAX_ITERATIONS if count is None else count
    for iterations in range(limit + 1):
        new = advance(x)
        is_checked = count is None or iterations == limit
        residual = new - x if is_checked or correct else new
        if is_checked:
            both = torch.stack([residual, x]).flatten(1)
            sizes = torch.linalg.vector_norm(both, math.inf, dim=1)
            if iterations == limit or relative([sizes]) <= TOLERANCE:
                break
        x = x + correct(residual) if correct else new
    return Iterated(x if correct else new, sizes, iterations)


def relative(sizes: list[Tensor]) -> float:
    """Return the largest residual relative to its x, or NaN if any is NaN. Waits for the device."""
    joined = sizes[0] if len(sizes) == 1 else torch.cat(sizes)
    ratios = [r / max(x, _TINY) for r, x in joined.view(-1, 2).tolist()]
    return math.nan if any(map(math.isnan, ratios)) else max(ratios)


def powers_of(matrix: Tensor) -> list[Tensor]:
    """Return matrix, matrix^2, matrix^4, ...: one for each factor of the product."""
    powers = [matrix]
    while len(powers) < DOUBLINGS:
        powers.append(powers[-1] @ powers[-1])
    return powers


@keep(8)
def quadrature(steps: int) -> tuple[Tensor, list[Tensor]]:
    """Return q0 [n] and Q, Q^2, Q^4, ... [n, n] in float64, for a step of 1; they integrate from node 0.

    Between two nodes the slope is taken to be the cubic through both and their neighbours, or at the
    ends through the nearest four nodes.
    """
    piece = torch.zeros(steps, steps + 1, dtype=torch.float64)  # integrals over one interval
    for i in range(1, steps - 1):
        piece[i, i - 1 : i + 3] = torch.tensor([-1, 13, 13, -1], dtype=torch.float64) / 24
    piece[0, :4] = torch.tensor([9, 19, -5, 1], dtype=torch.float64) / 24
    piece[-1, -4:] = piece[0, :4].flip(0)
    whole = piece.cumsum(0)
    return whole[:, 0], powers_of(whole[:, 1:])


class Nodes:
    """Hold q0 and the times since the start [n, 1, 1] of n nodes, and Q, Q^2, Q^4 ... [n, n].

    Args:
        steps: n.
        step: grid spacing.
        like: gives dtype and device.
    """

    def __init__(self, steps: int, step: float, like: Tensor):
        first, powers = quadrature(steps)
        self.first = constant_like(step * first, like)[:, None, None]
        since_start = step * torch.arange(1, steps + 1, dtype=torch.float64)
        self.since_start = constant_like(since_start, like)[:, None, None]
        self.powers = [constant_like(step ** (2**j) * q, like) for j, q in enumerate(powers)]
        # Sums over the nodes, plainly and by q0, in one product.
        self.sums = torch.stack([torch.ones_like(self.first).flatten(), self.first.flatten()])


@keep(16)
def kept_nodes(steps: int, step: float, dtype: torch.dtype, device: torch.device) -> Nodes:
    """Return cached nodes, because copying their numbers to a GPU costs as much as an iteration."""
    return Nodes(steps, step, torch.empty(0, dtype=dtype, device=device))


class Segment:
    """Solve one segment in place, and pull gradients back through it.

    Args:
        h: the flow.
        nodes: of the segment.
        known: values, slopes and hidden layers [n + 1, R, C] to fill in; only the first value is given.
        plain: whether to iterate without the Jacobian.
    """

    def __init__(
        self, h: DynamicsCoefficients, nodes: Nodes, known: tuple[Tensor, ...], plain: bool
    ):
        self.h, self.nodes, self.plain = h, nodes, plain
        self.values, self.slopes, self.hidden = known
        self.jacobians: list[Tensor] = []

    def solve(self, biases: tuple[Tensor, ...], count: int | None) -> Iterated:
        """Fill in the tensors.

        ``biases`` [n + 1, R, C] are those of both layers at the nodes' times; ``count`` as in `iterate`.
        """
        x0 = self.values[0]
        slope0 = self._evaluate(slice(0, 1), biases, x0[None])
        # New tensors, because the result of broadcasting may have nodes last in memory.
        constant, guess = torch.empty_like(self.values[1:]), torch.empty_like(self.values[1:])
        torch.addcmul(x0, self.nodes.first, slope0, out=constant)
        torch.addcmul(x0, self.nodes.since_start, slope0, out=guess)

        def advance(x: Tensor) -> Tensor:
            return _over_nodes(
                self.nodes.powers[0], self._evaluate(slice(1, None), biases, x), constant
            )

        iterated = iterate(advance, guess, None if self.plain else self._correct, count)
        self.values[1:] = iterated.x
        return iterated

    def _evaluate(self, at: slice, biases: tuple[Tensor, ...], x: Tensor) -> Tensor:
        hidden, slopes, bias1, bias2 = (
            part[at].flatten(0, 1) for part in (self.hidden, self.slopes, *biases)
        )
        torch.addmm(bias1, x.flatten(0, 1), self.h.w1.T, out=hidden).relu_()
        return torch.addmm(bias2, hidden, self.h.w2.T, out=slopes).view_as(x)

    def _correct(self, residual: Tensor) -> Tensor:
        if not self.jacobians:
            is_open = (self.hidden[1:].flatten(0, 1) > 0).to(residual)
            self.jacobians = powers_of(self.h.w2 @ (is_open.mean(0)[:, None] * self.h.w1))
        for q, jacobian in zip(self.nodes.powers, self.jacobians):
            residual = _over_nodes(q, residual @ jacobian.T, residual)
        return residual

    def _correct_back(self, residual: Tensor) -> Tensor:
        for q, jacobian in zip(self.nodes.powers, self.jacobians):
            residual = _over_nodes(q.T, residual @ jacobian, residual)
        return residual

    def pull_back(
        self, gradient: Tensor, count: int | None
    ) -> tuple[Tensor, Tensor, Tensor, Iterated]:
        """Pull a ``gradient`` of values and slopes, [2, n + 1, R, C], back to the first value [R, C].

        Returns:
            The gradients at the first value, at the hidden layers before the ReLU, and at the slopes.
        """
        h, is_open, back = self.h, self.hidden > 0, self.nodes.powers[0].T
        at_values, at_slopes = gradient[:, 1:]
        hidden, values = torch.empty_like(self.hidden), torch.empty_like(at_values)

        def pull(slopes: Tensor, at: slice) -> Tensor:
            """Pull the gradient of slopes back to before the ReLU."""
            into = hidden[at].flatten(0, 1)
            return torch.mm(slopes.flatten(0, 1), h.w2, out=into).mul_(is_open[at].flatten(0, 1))

        def advance(slopes: Tensor) -> Tensor:
            """Return the slopes' gradient: the direct part, and that through the values they sum to."""
            direct, into = at_values.flatten(0, 1), values.flatten(0, 1)
            torch.addmm(direct, pull(slopes, slice(1, None)), h.w1, out=into)
            return _over_nodes(back, values, at_slopes)

        guess = _over_nodes(back, at_values, at_slopes)
        iterated = iterate(advance, guess, None if self.plain else self._correct_back, count)
        both = torch.addmm(gradient[:, 0].flatten(1), self.nodes.sums, values.flatten(1))
        value0, slope0 = both.view(2, 1, *values.shape[1:])
        at_start = torch.addmm(value0[0], pull(slope0, slice(0, 1)), h.w1)
        return at_start, hidden, torch.cat([slope0, iterated.x]), iterated


def _over_nodes(matrix: Tensor, x: Tensor, plus: Tensor) -> Tensor:
    """Return plus + matrix x: [n, n] times [n, R, C]."""
    return torch.addmm(plus.flatten(1), matrix, x.flatten(1)).view_as(x)
