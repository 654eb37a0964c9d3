"""Read positions off the trajectory of a learned flow, dp/dt = h(t, p; theta), at times t_i (`clock.py`).

"Learning to Encode Position for Transformer with Continuous Dynamical Model", ICML 2020:
equation 8 (the flow), 10 (one theta for all blocks, a p(0) for each), 12 and 13 (biases on q, k, v).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.ode import (
    ADVICE,
    TORCHDIFFEQ_SOLVERS,
    BackwardDynamics,
    Clock,
    PositionDynamics,
    checked_step_size,
)
from fairseq_floater.ode.clock import LINEAR
from fairseq_floater.ode.flow_solver import AUTO, FlowSolver, engine_for
from fairseq_floater.ode.kept import keep
from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.floater_options import (
    RELATIVE_FORMS,
    RELATIVE_OPTION,
    SOLVER_OPTIONS,
    check_relative_option,
)
from fairseq_floater.position_encoders.floater_training import (
    ALL,
    TRAINING_OPTIONS,
    check_training,
    scope,
    training_warning,
    trains_dynamics,
    trains_start,
)
from fairseq_floater.position_encoders.flow import FlowPositions, StartValues
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.signal import PositionSignal

# Defaults of `--floater-init-scale`. The qkv form starts close to the model it is added to;
# the hidden form is the only source of positions when the sinusoid is off, and starts at full size.
QKV_INIT_SCALE = 0.01
HIDDEN_INITIAL_VALUE_STD = 0.1


class InitialValues(StartValues):
    """Hold p(0) of every stream of one block (the freely initialised p^(n)(0) of equation 10)."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(spec.options["floater_lr_scale"])
        self.block_index = block_index
        scale = spec.options["floater_init_scale"]
        hidden_std = HIDDEN_INITIAL_VALUE_STD if scale is None else scale
        std = 0.0 if spec.target == "qkv" else hidden_std
        values = spec.neutral + torch.randn(len(spec.streams), spec.dim) * std
        self.values = nn.Parameter(values / self.lr_scale)


class FloaterPositions(FlowPositions, PositionSignal):
    """Follow one dynamics, shared by blocks and streams, from the p(0) of each.

    Shapes: table [N, S, L, C]. Unit of time: one token is ``--floater-delta``. Past the trained
    length the flow simply goes on. The gradient is that of the discrete solve, at every update
    unless ``--floater-update-interval`` says otherwise.
    """

    name = "floater"
    title = "FLOATER"
    formula = "dp/dt = h(t, p), p at t = 0.1 i"
    source = "ICML 2020, equations 8, 10, 12, 13"
    targets = ("qkv", "hidden", "relative")  # the last is another class, `relative_flow.py`
    acts_on = "q, k, v"
    inductive = True
    data_driven = True
    takes_scalar_noise = False
    parameter_efficient = True
    continuous = True
    range_advice = ADVICE
    options = (
        *SOLVER_OPTIONS,
        Option("--floater-time-scale", 1.0, "h sees t / scale: bounds time for long input", float),
        Option(
            "--floater-init-scale",
            None,
            "std of the initial h and p(0); default 0.01 for qkv (p(0) = 0), Linear's own "
            "initialisation for hidden (p(0) std 0.1); 0 starts exactly as the model without it",
            float,
        ),
        Option(
            "--floater-lr-scale",
            1.0,
            "learning-rate multiple of h and p(0); with adam, adamax, adagrad or adafactor",
            float,
        ),
        Option(
            "--floater-update-interval",
            1,
            "solve with gradient when num_updates %% K == 0, reuse the table in between",
            int,
            at_least=1,
        ),
        RELATIVE_OPTION,
        *TRAINING_OPTIONS,
    )
    forms = (
        *("--target hidden", "--target hidden -- --floater-time log", "--target qkv"),
        *RELATIVE_FORMS,
    )

    @classmethod
    def check_options(cls, options: dict[str, Any], target: str) -> None:
        for dest in ("floater_delta", "floater_time_scale", "floater_lr_scale"):
            if not 0 < options[dest] < float("inf"):
                flag = "--" + dest.replace("_", "-")
                raise ValueError(f"`{flag}` must be positive, but is {options[dest]} instead.")
        Clock.read(options)
        scale = options["floater_init_scale"]
        if scale is not None and not 0 <= scale < float("inf"):
            raise ValueError(
                f"`--floater-init-scale` must not be negative, but is {scale} instead."
            )
        check_training(options, target)
        check_relative_option(options, target)
        solver, gradient = options["floater_solver"], options["floater_gradient"]
        if solver == AUTO and gradient == "adjoint":
            raise ValueError(
                "`--floater-gradient` adjoint needs `--floater-solver` to be one of torchdiffeq's "
                f"({', '.join(TORCHDIFFEQ_SOLVERS)}), but is auto."
            )
        for device in ("cpu", "cuda"):
            checked_step_size(*engine_for(options, device), gradient)

    @classmethod
    def goes_before_start(cls, options: dict[str, Any]) -> bool:
        # Between solves the rows used again have a gradient of zero; `compute_before` would give its own one.
        return bool(options["floater_update_interval"] == 1)

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        solver, step = options["floater_solver"], options["floater_step_size"]
        gradient = options["floater_gradient"]
        if solver != AUTO:
            step = checked_step_size(solver, step, gradient)
        if step is None:
            step = "by measured error" if solver == AUTO else "adaptive"
        bent = "" if options["floater_time"] == LINEAR else f"time {Clock.read(options)}, "
        return (
            f"delta {options['floater_delta']}, {bent}solver {solver}, step {step}, gradient {gradient}, "
            f"update interval {options['floater_update_interval']}"
            + (f", trained: {scope(options)}" if scope(options) != ALL else "")
        )

    @classmethod
    def warning(cls, options: dict[str, Any], target: str) -> str | None:
        return training_warning(options, target)

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        options = spec.options
        self.dynamics = PositionDynamics(
            spec.dim, options["floater_time_scale"], options["floater_lr_scale"]
        )
        scale = options["floater_init_scale"]
        if scale is None and spec.target == "qkv":
            scale = QKV_INIT_SCALE
        self.dynamics.reset_parameters(scale)
        self.clock = Clock.read(options)
        label = f"{'/'.join(spec.streams)} ({spec.side} positions)"
        self.solver = FlowSolver(options, label, spec.usual_length, self.clock)
        self.update_interval: int = options["floater_update_interval"]
        self._last_solve: _LastSolve | None = None
        self.dynamics.requires_grad_(trains_dynamics(options))

    def build_block(self, block_index: int) -> nn.Module:
        block = InitialValues(block_index, self.spec)
        return block.requires_grad_(trains_start(self.spec.options))

    def compute_between(
        self, num_rows: int, rows_per_token: int, blocks: Sequence[InitialValues]
    ) -> Tensor:
        # One row is p(0) alone: a second one gives the flow its (zero) gradient, as DDP expects.
        times = self.times(max(num_rows, 2), rows_per_token)
        if self.training and self.update_interval > 1:
            return self._solved_at_intervals(times, blocks)[:num_rows]
        p0 = self._initial_values(blocks)
        rows = self.solver.solve(self.dynamics, p0, times, **self._engine(p0, times))
        return rows if len(rows) == num_rows else rows[:num_rows]

    def compute_before(
        self, num_rows: int, rows_per_token: int, blocks: Sequence[InitialValues]
    ) -> Tensor:
        times = self.times(num_rows + 1, rows_per_token)
        p0 = self._initial_values(blocks)
        engine = self._engine(p0, times)
        rows = self.solver.solve(BackwardDynamics(self.dynamics), p0, times, **engine)
        return rows[1:].flip(0)

    def _engine(self, p0: Tensor, times: Tensor) -> dict[str, Any]:
        num_tokens = round(self.clock.place(times[-1].item())) + 1
        return self.solver.engine(self.dynamics, p0, self.training, self.num_updates, num_tokens)

    def _solved_at_intervals(self, times: Tensor, blocks: Sequence[InitialValues]) -> Tensor:
        """Solve with a gradient at every K-th update; in between reuse the table, with gradients of zero."""
        solve_now = self.num_updates % self.update_interval == 0
        if solve_now or self._last_solve is None:  # a resumed run may start in between
            p0 = self._initial_values(blocks)
            engine = self._engine(p0, times)
            self._last_solve = _LastSolve(self.dynamics, p0, self.solver, engine)
            if solve_now:
                table = self.solver.solve(self.dynamics, p0, times, **engine)
                self._last_solve.rows = table.detach()
                return table
        parameters = [*self.dynamics.parameters(), *(block.values for block in blocks)]
        return _ZeroGradient.apply(self._last_solve.table(times), *parameters)

    def forget(self) -> None:
        super().forget()
        self._last_solve = None

    def times(self, num_rows: int, rows_per_token: int = 1) -> Tensor:
        """Return the times of token positions 0, 1/r, 2/r, ...: [N] float64 on the CPU."""
        return _times(self.clock, num_rows, rows_per_token)

    def _initial_values(self, blocks: Sequence[InitialValues]) -> Tensor:
        joined: Tensor = _Joined.apply(*(block.initial() for block in blocks))
        return joined


@keep(256)
def _times(clock: Clock, num_rows: int, rows_per_token: int) -> Tensor:
    return clock.times(torch.arange(num_rows, dtype=torch.float64) / rows_per_token)


class _LastSolve:
    """Keep what the flow was last solved with, and ``rows`` [N, S, L, C] so far; without a graph.

    A longer batch before the next solve gets its further rows from the same parameters. Otherwise a
    row would depend on the batches that a process happened to meet, and two processes would train
    with different tables.
    """

    def __init__(
        self, dynamics: PositionDynamics, p0: Tensor, solver: FlowSolver, engine: dict[str, Any]
    ):
        self.solver, self.engine = solver, engine
        self.dynamics = copy.deepcopy(dynamics).requires_grad_(False)
        self.p0 = p0.detach()  # stacked: shares no memory with the parameters
        self.rows = self.p0[:0]  # none yet

    def table(self, times: Tensor) -> Tensor:
        """Return the rows at ``times`` [N]: [N, S, L, C]."""
        if len(self.rows) < len(times):
            with torch.no_grad():
                self.rows = self.solver.solve(self.dynamics, self.p0, times, **self.engine)
        return self.rows[: len(times)]


class _Joined(torch.autograd.Function):
    """Stack the p(0) [S, C] of L blocks: [S, L, C].

    Each block's gradient comes back in one piece; torch's own stack hands out strided ones, which are
    copied block by block.
    """

    @staticmethod
    def forward(ctx: Any, *starts: Tensor) -> Tensor:
        return torch.stack(starts, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.transpose(0, 1).contiguous().unbind()


class _ZeroGradient(torch.autograd.Function):
    """Reuse a table and still give its parameters a gradient, zero, as DDP expects."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return table.view_as(table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *(torch.zeros_like(p) for p in ctx.saved_tensors))
