"""Read positions off the trajectory of a learned flow, dp/dt = h(t, p; theta), at times t_i (`clock.py`).

"Learning to Encode Position for Transformer with Continuous Dynamical Model", ICML 2020:
equation 8 (the flow), 10 (one theta for all blocks, a p(0) for each), 12 and 13 (biases on q, k, v).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.ode import (
    ADVICE,
    BackwardDynamics,
    Clock,
    PositionDynamics,
    RescaledModule,
)
from fairseq_floater.ode.flow_solver import FlowSolver
from fairseq_floater.ode.kept import keep
from fairseq_floater.position_encoders.base import EncoderSpec, PositionEncoder
from fairseq_floater.position_encoders.floater_options import (
    FLOATER_OPTIONS,
    RELATIVE_FORMS,
    SINUSOID,
    floater_faults,
    in_force,
    solver_candidates,
    solver_options,
    training_warning,
    trains_dynamics,
    trains_start,
)
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.sinusoidal import sinusoid_generator, sinusoid_rows
from fairseq_floater.position_encoders.transforms import Places

# Defaults of `--floater-init-scale`. The qkv form starts close to the model it is added to;
# the hidden form is the only source of positions when the sinusoid is off, and starts at full size.
QKV_INIT_SCALE = 0.01
HIDDEN_INITIAL_VALUE_STD = 0.1


class StartValues(RescaledModule):
    """Hold where the trajectories of one block start, divided by ``--floater-lr-scale``."""

    values: nn.Parameter

    def initial(self) -> Tensor:
        dtype = torch.promote_types(self.values.dtype, torch.float32)
        return self.scaled(self.values.to(dtype))


class FlowPositions(PositionEncoder):
    """Keep the solver of a flow, which knows the number of updates and forgets with the encoder.

    Subclasses set ``solver`` and compute their rows with it.
    """

    solver: FlowSolver
    num_updates = 0

    def statistics(self) -> dict[str, Any]:
        return self.solver.statistics()

    def set_num_updates(self, num_updates: int) -> None:
        self.num_updates = num_updates

    def forget(self) -> None:
        super().forget()
        self.solver.forget()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Beside the tensors: torch keeps such metadata, fairseq too. After a validation nothing is known.
        if self.training and hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["solver"] = self.solver.state()

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *args)
        if "solver" in metadata:
            self.solver.restore(metadata["solver"])


class InitialValues(StartValues):
    """Hold p(0) of every stream of one block (the freely initialised p^(n)(0) of equation 10)."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(spec.options["floater_lr_scale"])
        self.block_index = block_index
        scale = spec.options["floater_init_scale"]
        hidden_std = HIDDEN_INITIAL_VALUE_STD if scale is None else scale
        std = 0.0 if spec.target == "qkv" else hidden_std
        values = spec.neutral + torch.randn(len(spec.streams), spec.dim) * std
        if (
            spec.options["floater_start"] == SINUSOID
        ):  # of later blocks zeros, which its field keeps
            first = block_index == 0
            values = sinusoid_rows(1, spec.dim, spec.padding_idx) if first else 0 * values
        self.values = nn.Parameter(values / self.lr_scale)
        self.requires_grad_(trains_start(spec.options))


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
    part = InitialValues
    targets = ("qkv", "hidden", "relative")  # the last is another class, `relative_flow.py`
    acts_on = "q, k, v"
    takes_scalar_noise = False
    continuous = True
    range_advice = ADVICE
    options = FLOATER_OPTIONS
    forms = (
        *("--target hidden", "--target hidden -- --floater-time log", "--target qkv"),
        *RELATIVE_FORMS,
    )

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        return floater_faults(options, target)

    @classmethod
    def goes_before_start(cls, options: dict[str, Any]) -> bool:
        # Rows that are used again have a gradient of zero; those before position 0 would not.
        return bool(options["floater_update_interval"] == 1)

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        return super().describe(in_force(options), target)

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
        if options["floater_start"] == SINUSOID:
            self.dynamics.start_linear(sinusoid_generator(spec.dim) / options["floater_delta"])
        self.clock = Clock.read(options)
        label = f"{'/'.join(spec.streams)} ({spec.side} positions)"
        candidates = solver_candidates(options)
        options = solver_options(options)
        self.solver = FlowSolver(options, label, spec.usual_length, self.clock, candidates)
        self.update_interval: int = options["floater_update_interval"]
        self._last_solve: _LastSolve | None = None
        self.dynamics.requires_grad_(trains_dynamics(options))

    def rows(self, places: Places, blocks: Sequence[InitialValues]) -> Tensor:
        backwards = None
        if places.before:
            dynamics = BackwardDynamics(self.dynamics)
            backwards = self._solved(dynamics, places.before + 1, places.per_token, blocks)
        count = places.count - places.before
        # One row is p(0) alone: a second one gives the flow its (zero) gradient, as DDP expects.
        rows = self._solved(self.dynamics, max(count, 2), places.per_token, blocks)
        rows = rows if len(rows) == count else rows[:count]
        return rows if backwards is None else torch.cat([backwards[1:].flip(0), rows])

    def _solved(
        self, dynamics: Any, num_rows: int, per_token: int, blocks: Sequence[InitialValues]
    ) -> Tensor:
        """Follow ``dynamics`` from p(0) on: [N, S, L, C]."""
        times = self.times(num_rows, per_token)
        if self.training and self.update_interval > 1:
            return self._solved_at_intervals(times, blocks)
        p0 = self._initial_values(blocks)
        return self.solver.solve(dynamics, p0, times, **self._engine(p0, times))

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

    Each block's gradient comes back in one piece; torch's stack hands out strided ones, which are
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
