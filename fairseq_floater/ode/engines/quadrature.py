"""Integrate a function given at the nodes of a segment: the matrices of `collocation.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_floater.ode.kept import keep

# Factors of the product: 2^3 = 8 terms of the series of the inverse. With more, no flow that was tried
# needed fewer iterations over 64 tokens.
DOUBLINGS = 3


def powers_of(matrix: Tensor) -> list[Tensor]:
    """Return matrix, matrix^2, matrix^4, ...: one for each factor of the product."""
    powers = [matrix]
    while len(powers) < DOUBLINGS:
        powers.append(powers[-1] @ powers[-1])
    return powers


@keep(8)
def quadrature(steps: int) -> tuple[Tensor, list[Tensor]]:
    """Return q0 [n] and Q, Q^2, Q^4, ... [n, n] for a step of one, float64: integrals from node 0.

    Between two nodes the slope is the cubic through them and the nodes beside them, at the ends
    through the nearest four.
    """
    piece = torch.zeros(steps, steps + 1, dtype=torch.float64)  # of one interval each
    for i in range(1, steps - 1):
        piece[i, i - 1 : i + 3] = torch.tensor([-1, 13, 13, -1], dtype=torch.float64) / 24
    piece[0, :4] = torch.tensor([9, 19, -5, 1], dtype=torch.float64) / 24
    piece[-1, -4:] = piece[0, :4].flip(0)
    whole = piece.cumsum(0)
    return whole[:, 0], powers_of(whole[:, 1:])
