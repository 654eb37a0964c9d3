"""Measure how exact and how fast the engines are on one flow after another: the part ``solve``.

Letters: R rows (streams times blocks), C channels, N positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.benchmark.flows import Flow, standard_flows, trained_flows
from fairseq_floater.benchmark.parts import Bench, Row
from fairseq_floater.benchmark.timing import comparison
from fairseq_floater.ode import ENGINES, FlowError, SolveRecord, choose, solve

# What the others are compared with: the paper's solver and step.
REFERENCE = ("rk4", 0.02)
# The truth, in float64.
TRUTH = {"solver": "rk4_hermite", "step_size": 0.025}
COMPARED = [
    (engine.name, step)
    for engine in reversed(ENGINES.values())
    for step in engine.benchmark_steps or (engine.default_step,)
]
AUTO = "auto"
# torchdiffeq takes seconds a solve: of the rounds asked for, this share.
SHARE_OF_ROUNDS = 8


def solve_rows(bench: Bench, dim: int, rows: int) -> list[Row]:
    """Measure errors and times of every engine on every flow, and of the engine that ``auto`` takes.

    Errors are relative: of the largest value, and of the norm of the gradient of a fixed random
    functional of all rows, with respect to dynamics and p(0).

    Args:
        bench: settings and contestants.
        dim: C of the standard flows.
        rows: R.
    """
    settings = bench.settings
    found: list[Row] = []
    for flow in _flows(bench, dim, rows):
        bench.progress(f"solve, {flow.name}: the truth")
        trial = _Trial(flow, settings.solve_length, settings.device)
        times = trial.times
        choice = choose(trial.flow.dynamics, trial.p0, times)
        engines = {_name(solver, step): (solver, step) for solver, step in COMPARED}
        engines[f"{AUTO}: {_name(choice.solver, choice.step_size)}"] = (
            choice.solver,
            choice.step_size,
        )
        measured = {name: trial.measured(*engine) for name, engine in engines.items()}
        turns = {
            name: _turn(trial, *engines[name]) for name, row in measured.items() if row is not None
        }
        rounds = max(3, settings.rounds // SHARE_OF_ROUNDS)
        seconds = bench.timed(f"solve, {flow.name}", turns, rounds)
        base = seconds[_name(*REFERENCE)]
        for name, row in measured.items():
            if row is not None:
                timed = comparison(seconds[name], base)
                found.append({"flow": flow.name, "engine": name, **row, **timed})
    return found


def _flows(bench: Bench, dim: int, rows: int) -> Iterator[Flow]:
    yield from standard_flows(dim, rows, bench.settings.seed)
    if bench.settings.checkpoint is not None:
        yield from trained_flows(bench.settings.checkpoint)


def _name(solver: str, step: float | None) -> str:
    return solver if step is None else f"{solver} {step}"


def _turn(trial: _Trial, solver: str, step: float | None) -> Callable[[int], object]:
    return lambda number: trial.solved(solver, step)


class _Trial:
    """One flow on one device, with its true values and gradient."""

    def __init__(self, flow: Flow, length: int, device: str):
        self.flow = flow._replace(dynamics=flow.dynamics.to(device))
        self.p0 = flow.p0.to(device).requires_grad_()
        self.times = flow.delta * torch.arange(length, dtype=torch.float64)
        weights = torch.randn((length, *flow.p0.shape), generator=torch.Generator().manual_seed(1))
        self.weights = weights.to(device)
        exact = copy.deepcopy(self.flow.dynamics).double()
        self.truth = _values_and_gradient(
            exact, self.p0.detach().double().requires_grad_(), self.times, self.weights, **TRUTH
        )

    def solved(
        self, solver: str, step: float | None, record: SolveRecord | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return values, and the gradient as one vector."""
        return _values_and_gradient(
            self.flow.dynamics,
            self.p0,
            self.times,
            self.weights,
            solver=solver,
            step_size=step,
            record=record,
        )

    def measured(self, solver: str, step: float | None) -> Row | None:
        """Return errors and rounds of h; None where the engine cannot solve this flow."""
        record = SolveRecord()
        try:
            values, gradient = self.solved(solver, step, record)
        except FlowError:
            return None
        true_values, true_gradient = self.truth
        return {
            "value_error": float((values - true_values).abs().max() / true_values.abs().max()),
            "gradient_error": float((gradient - true_gradient).norm() / true_gradient.norm()),
            "evaluations": record.evaluations,
            "fallbacks": record.fallbacks,
        }


def _values_and_gradient(
    dynamics: Any, p0: Tensor, times: Tensor, weights: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    inputs = [p0, *dynamics.parameters()]
    values = solve(dynamics, p0, times, **options)
    gradients = torch.autograd.grad(values, inputs, weights.to(values))
    return values.detach(), torch.cat([g.flatten() for g in gradients])
