"""Reuse a table of positions between the updates that solve the flow: ``--floater-update-interval``."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.ode import PositionDynamics
from fairseq_floater.ode.flow_solver import FlowSolver


class LastSolve:
    """Keep the parameters of the last solve, and ``rows`` [N, S, L, C] so far; without a graph.

    A longer batch before the next solve gets its additional rows from the same parameters. Otherwise a
    row would depend on the batches that a process happened to see, and two processes would train
    with different tables.
    """

    def __init__(
        self, dynamics: PositionDynamics, p0: Tensor, solver: FlowSolver, engine: dict[str, Any]
    ):
        self.solver, self.engine = solver, engine
        self.dynamics = copy.deepcopy(dynamics).requires_grad_(False)
        self.p0 = p0.detach()  # stacked, so it shares no memory with the parameters
        self.rows = self.p0[:0]  # none yet

    def table(self, times: Tensor) -> Tensor:
        """Return the rows at ``times`` [N]: [N, S, L, C]."""
        if len(self.rows) < len(times):
            with torch.no_grad():
                self.rows = self.solver.solve(self.dynamics, self.p0, times, **self.engine)
        return self.rows[: len(times)]


class ZeroGradient(torch.autograd.Function):
    """Return a table again, and give its parameters a gradient of zero, as DDP expects."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return table.view_as(table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *(torch.zeros_like(p) for p in ctx.saved_tensors))
