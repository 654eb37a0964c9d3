"""Define the description of an engine, by which the package lists, checks and calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Describe one way to solve the flow.

    Attributes:
        name: the value of ``--floater-solver``.
        summary: one phrase for the help.
        solve: maps (dynamics, p0 [..., C], times [N], step, record) to p at ``times``, [N, ..., C];
            its gradient is that of the discrete solution.
        solve_adjoint: the same with the continuous adjoint's gradient, for engines that offer it.
        default_step: in units of time; None for an engine that chooses its own steps.
        finest_step: the smallest step that the engine takes.
        coarsest_step: the largest step that the engine takes.
        auto_steps: the steps that ``auto`` tries, fastest first, by case: training on ``cpu`` or ``cuda``,
            or ``evaluation``.
        benchmark_steps: the steps that `python -m benchmarks speed` compares; if none, the default step.
    """

    name: str
    summary: str
    solve: Callable[..., Tensor]
    solve_adjoint: Callable[..., Tensor] | None = None
    default_step: float | None
    finest_step: float = 0.0
    coarsest_step: float = float("inf")
    auto_steps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    benchmark_steps: tuple[float, ...] = ()
