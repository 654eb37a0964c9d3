"""Record what the solves of one flow cost and how they ended, for the log and for the next solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Iterations of the parallel engine while nothing is known of the flow.
FIRST_ITERATIONS = 8


@dataclass
class SolveRecord:
    """Count the solves of one flow; :meth:`take` starts the counts anew.

    Attributes:
        solves: number of solves.
        evaluations: evaluations of h that had to wait for one another, in forward passes only.
        fallbacks: solves or gradients for which RK4 stood in for the parallel engine.
        fell_back: whether RK4 stood in since the flow was measured.
        residual: largest relative residual of the parallel engine, or None.
        iterations: of the parallel engine in each segment, if checking the residual after each costs time.
        wide: whether the parallel engine then uses long segments.
        iterations_needed: most iterations that a segment needed when each residual was checked.
        wide_converged: whether long segments then converged.
        check_each: whether to check the residual after each iteration; None: only if that costs no time.
    """

    solves: int = 0
    evaluations: int = 0
    fallbacks: int = 0
    fell_back: bool = False
    residual: float | None = None
    iterations: int = FIRST_ITERATIONS
    wide: bool = True
    iterations_needed: int = 0
    wide_converged: bool = True
    check_each: bool | None = None

    def add(self, evaluations: int) -> None:
        self.solves += 1
        self.evaluations += evaluations

    def add_residual(self, residual: float) -> None:
        self.residual = max(self.residual or 0.0, residual)

    def note(self, wide: bool, iterations: int) -> None:
        """Record what the parallel engine needed when the residual was checked after each iteration."""
        self.wide_converged = self.wide_converged and wide
        self.iterations_needed = max(self.iterations_needed, iterations)

    def learn(self, measured: SolveRecord) -> None:
        """Let the parallel engine iterate as it needed in ``measured``, which checked each residual."""
        if measured.iterations_needed:
            self.iterations, self.wide = measured.iterations_needed + 1, measured.wide_converged

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
