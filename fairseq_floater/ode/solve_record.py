"""Record what the solves of one flow cost and how they ended, for the log and for the next solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Iterations of the parallel engine where nothing is known of the flow yet.
FIRST_ITERATIONS = 8


@dataclass
class SolveRecord:
    """Count the solves of one flow; :meth:`take` starts the counts anew.

    Attributes:
        solves: how many.
        evaluations: rounds of h that had to wait for one another, forward passes only.
        fallbacks: solves or gradients in which RK4 stood in for the parallel engine.
        fell_back: whether that happened since the flow was measured.
        residual: largest relative residual of the parallel engine, or None.
        iterations: of the parallel engine in each segment, where looking after each costs time.
        wide: whether it then takes its long segments.
        iterations_needed: the most that a segment needed where every iteration was looked at.
        wide_did: whether long segments then did.
        look: whether the parallel engine looks after each iteration; None: unless that costs time.
    """

    solves: int = 0
    evaluations: int = 0
    fallbacks: int = 0
    fell_back: bool = False
    residual: float | None = None
    iterations: int = FIRST_ITERATIONS
    wide: bool = True
    iterations_needed: int = 0
    wide_did: bool = True
    look: bool | None = None

    def add(self, evaluations: int) -> None:
        self.solves += 1
        self.evaluations += evaluations

    def add_residual(self, residual: float) -> None:
        self.residual = max(self.residual or 0.0, residual)

    def note(self, wide: bool, iterations: int) -> None:
        """Take down what the parallel engine needed where every iteration was looked at."""
        self.wide_did = self.wide_did and wide
        self.iterations_needed = max(self.iterations_needed, iterations)

    def fall_back(self, most_iterations: int) -> None:
        """Count a solve in which RK4 stood in; the next may iterate longer."""
        self.fallbacks += 1
        self.fell_back = True
        self.iterations = min(self.iterations + 2, most_iterations)

    def take(self) -> dict[str, Any]:
        """Return the counts so far, by name, and start anew."""
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
