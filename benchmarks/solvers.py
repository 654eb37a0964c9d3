"""Measure how exact and how fast the ODE engines are on several flows: the part ``solve``.

Letters: R rows (streams times blocks), C channels, N positions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import Bench
from benchmarks.flows import Flow, standard_flows
from benchmarks.timing import Row, Turn, quartiles, summary
from fairseq_floater.ode import ENGINES, FlowError, PositionDynamics, SolveRecord, choose, solve

# The paper's solver and step, with which the others are compared.
REFERENCE = "rk4 0.02"
# The solution that counts as exact, in float64: a quarter of the reference's step.
TRUTH = {"solver": "rk4_hermite", "step_size": 0.005}
COMPARED = [
    (engine.name, step)
    for engine in reversed(ENGINES.values())
    for step in engine.benchmark_steps or (engine.default_step,)
]
# torchdiffeq takes seconds per solve, so only one of this many rounds is run, but at least three.
SHARE_OF_ROUNDS = 8


def solve_rows(bench: Bench, dim: int, rows: int, trained: Sequence[Flow] = ()) -> list[Row]:
    """Measure errors and times of every engine on every flow, and of the engine that ``auto`` takes.

    Errors are relative: to the largest value, and to the norm of the gradient. The gradient is that of a
    fixed random functional of all rows with respect to dynamics and p(0).

    Args:
        bench: settings and contestants.
        dim: C of the standard flows.
        rows: R.
        trained: further flows.
    """
    flows = [*standard_flows(dim, rows, bench.settings.seed), *trained]
    return [row for flow in flows for row in _flow_rows(bench, flow)]


def _flow_rows(bench: Bench, flow: Flow) -> list[Row]:
    """Compare engines on one flow; those that cannot solve it have no row."""
    settings = bench.settings
    bench.progress(f"solve, {flow.name}: the truth")
    trial = _Trial(flow, settings.solve_length, settings.device)
    bench.progress(f"solve, {flow.name}: engines")
    choice = choose(trial.dynamics, trial.p0, trial.times, candidates=flow.candidates)
    chosen = choice.solver, choice.step_size
    engines = {_name(*engine): engine for engine in COMPARED}
    engines[f"auto: {_name(*chosen)}"] = chosen
    records = {name: SolveRecord() for name in engines}
    errors = {name: trial.errors(*engines[name], record) for name, record in records.items()}

    def turn(name: str) -> Turn:
        solver, step = engines[name]
        options = {"solver": solver, "step_size": step, "record": records[name]}
        return lambda number: trial.solved(trial.dynamics, trial.p0, **options)

    turns = {name: turn(name) for name, row in errors.items() if row is not None}
    rounds = max(3, settings.rounds // SHARE_OF_ROUNDS)
    times = bench.timed(turns, rounds)
    rows = []
    for name, own in times.items():
        low, median, high = quartiles([a / b for a, b in zip(times[REFERENCE], own)])
        speedup = {"speedup": median, "speedup_low": low, "speedup_high": high}
        row = {"flow": flow.name, "engine": name, **(errors[name] or {})}
        rows.append(row | speedup | summary(own))
    return rows


def _name(solver: str, step: float | None) -> str:
    return solver if step is None else f"{solver} {step}"


class _Trial:
    """One flow on one device, with its true values and gradient."""

    def __init__(self, flow: Flow, length: int, device: str):
        self.dynamics, self.p0 = flow.dynamics.to(device), flow.p0.to(device).requires_grad_()
        self.times = flow.clock.of_tokens(length)
        weights = torch.randn((length, *flow.p0.shape), generator=torch.Generator().manual_seed(1))
        self.weights = weights.to(device)
        exact = copy.deepcopy(self.dynamics).double()
        exact_p0 = self.p0.detach().double().requires_grad_()
        self.truth = self.solved(exact, exact_p0, **TRUTH)

    def solved(
        self, dynamics: PositionDynamics, p0: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Return values, and the gradient of the functional as one vector."""
        values = solve(dynamics, p0, self.times, **options)
        inputs = [p0, *dynamics.parameters()]
        gradients = torch.autograd.grad(values, inputs, self.weights.to(values))
        return values.detach(), torch.cat([g.flatten() for g in gradients])

    def errors(self, solver: str, step: float | None, record: SolveRecord) -> Row | None:
        """Return errors and rounds of h; None if the engine cannot solve this flow.

        ``record`` learns what the parallel engine needs, as in training.
        """
        flow, measured = (self.dynamics, self.p0), SolveRecord(check_each=True)
        try:
            solved = self.solved(*flow, solver=solver, step_size=step, record=measured)
            record.learn(measured)
            if measured.iterations_needed:
                solved = self.solved(*flow, solver=solver, step_size=step, record=record)
        except FlowError:
            return None
        values, gradient = solved
        counted = record if measured.iterations_needed else measured
        true_values, true_gradient = self.truth
        return {
            "value_error": float((values - true_values).abs().max() / true_values.abs().max()),
            "gradient_error": float((gradient - true_gradient).norm() / true_gradient.norm()),
            "evaluations": counted.evaluations,
            "fallbacks": counted.fallbacks,
        }
