"""Record what the solves of one flow cost and how they ended, for the log and for the next solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Iterations of the parallel engine where nothing is known of the flow yet.
FIRST_ITERATIONS = 8


@dataclass
class SolveRecord:
    """Count the solves of one flow; :meth:`take` starts the counts anew.

    Attributes:
        solves: how many.
        evaluations: rounds of h that had to wait for one another, forward passes only.
        fallbacks: solves or gradients in which RK4 stood in for the parallel engine.
        residual: largest relative residual of the parallel engine, [] on its device, or None.
        iterations: of the parallel engine in each segment, where looking after each costs time.
        iterations_needed: the most that a segment needed where every iteration was looked at.
        look: whether the parallel engine looks after each iteration; None: unless that costs time.
    """

    solves: int = 0
    evaluations: int = 0
    fallbacks: int = 0
    residual: Tensor | None = None
    iterations: int = FIRST_ITERATIONS
    iterations_needed: int = 0
    look: bool | None = None

    def add(self, evaluations: int) -> None:
        self.solves += 1
        self.evaluations += evaluations

    def add_residual(self, residual: Tensor) -> None:
        residual = residual.detach()
        kept = self.residual
        self.residual = residual if kept is None else torch.maximum(kept, residual)

    def take(self) -> dict[str, Any]:
        """Return the counts so far, by name, and start anew; a residual stays on its device."""
        counts: dict[str, Any] = {
            "solves": self.solves,
            "evaluations": self.evaluations,
            "fallbacks": self.fallbacks,
        }
        if self.residual is not None:
            counts["residual"] = self.residual
        self.solves = self.evaluations = self.fallbacks = 0
        self.residual = None
        return counts
