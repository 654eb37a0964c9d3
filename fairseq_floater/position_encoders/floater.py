"""Take positions from the trajectory of a learned flow, dp/dt = h(t, p; theta), at times t_i (`clock.py`).

"Learning to Encode Position for Transformer with Continuous Dynamical Model", ICML 2020:
equation 8 (the flow), 10 (one theta for all blocks, a p(0) for each), 12 and 13 (biases on q, k, v).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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
from fairseq_floater.position_encoders.base import EncoderSpec, PositionEncoder
from fairseq_floater.position_encoders.floater_options import (
    BLOCK,
    FLOATER_OPTIONS,
    RELATIVE_FORMS,
    SHARED,
    SINUSOID,
    floater_faults,
    solver_candidates,
    solver_options,
    training_warning,
    trains_dynamics,
    trains_start,
)
from fairseq_floater.position_encoders.last_solve import LastSolve, ZeroGradient
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.sinusoidal import sinusoid_generator, sinusoid_rows
from fairseq_floater.position_encoders.transforms import Places

# Defaults of `--floater-init-scale`. The qkv form starts close to the model that it is added to. The
# hidden form is the only source of positions if the sinusoid is off, so it starts at full size.
QKV_INIT_SCALE = 0.01
HIDDEN_INITIAL_VALUE_STD = 0.1


class RescaledStart(RescaledModule):
    """Hold the starting points of one block's trajectories, divided by ``--floater-lr-scale``."""

    values: nn.Parameter

    def initial(self) -> Tensor:
        dtype = torch.promote_types(self.values.dtype, torch.float32)
        return self.scaled(self.values.to(dtype))


class FlowPositions(PositionEncoder):
    """Hold the solver of each flow.

    Subclasses set ``solvers`` and compute their rows with them. The solver of an h that the blocks share
    is named ""; the solver of a block's own h has the number of the block.
    """

    solvers: dict[str, FlowSolver]
    num_updates = 0

    def statistics(self) -> dict[str, Any]:
        of_flows = [solver.statistics() for solver in self.solvers.values()]
        joined = dict.fromkeys(name for one in of_flows for name in one)
        for name in joined:
            values = [one[name] for one in of_flows if name in one]
            # Flows are solved one after the other, so their evaluations add up.
            joined[name] = sum(values) if name in ("evaluations", "fallbacks") else max(values)
        return joined

    def set_num_updates(self, num_updates: int) -> None:
        self.num_updates = num_updates

    def forget(self) -> None:
        super().forget()
        for solver in self.solvers.values():
            solver.forget()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # As metadata, which torch and fairseq keep. After a validation the solver has no state.
        if self.training and hasattr(destination, "_metadata"):
            for name, solver in self.solvers.items():
                destination._metadata[prefix[:-1]]["solver" + name] = solver.state()

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *args)
        for name, solver in self.solvers.items():
            # An evaluation chooses by a smaller tolerance than training did.
            if self.training and "solver" + name in metadata:
                solver.restore(metadata["solver" + name])


class FloaterStart(RescaledStart):
    """Hold p(0) of every stream of one block (the freely initialised p^(n)(0) of equation 10).

    With ``--floater-theta block`` it also holds the block's h.
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(spec.options["floater_lr_scale"])
        self.block_index = block_index
        scale = spec.options["floater_init_scale"]
        hidden_std = HIDDEN_INITIAL_VALUE_STD if scale is None else scale
        std = 0.0 if spec.target == "qkv" else hidden_std
        values = spec.neutral + torch.randn(len(spec.streams), spec.dim) * std
        if spec.options["floater_start"] == SINUSOID:
            # Later blocks begin at zero, and there the flow of a sinusoid stays.
            first = not any(map(spec.receives, range(block_index)))
            values = sinusoid_rows(1, spec.dim, spec.padding_idx) if first else 0 * values
        self.values = nn.Parameter(values / self.lr_scale)
        self.requires_grad_(trains_start(spec.options))
        has_dynamics = spec.options["floater_theta"] == BLOCK
        self.dynamics = initial_dynamics(spec, spec.dim) if has_dynamics else None


def initial_dynamics(spec: EncoderSpec, width: int) -> PositionDynamics:
    """Return an h of ``width`` channels, initialised by the options."""
    options = spec.options
    dynamics = PositionDynamics(
        width,
        options["floater_time_scale"],
        options["floater_lr_scale"],
        options["floater_autonomous"],
    )
    scale = options["floater_init_scale"]
    dynamics.reset_parameters(QKV_INIT_SCALE if scale is None and spec.target == "qkv" else scale)
    if options["floater_start"] == SINUSOID:
        dynamics.start_linear(sinusoid_generator(width) / options["floater_delta"])
    return dynamics.requires_grad_(trains_dynamics(options))


class FloaterPositions(FlowPositions, PositionSignal):
    """Follow one dynamics, shared by blocks and streams, from the p(0) of each.

    With ``--floater-theta block`` each block has its own dynamics, and they are solved in turn.
    Shapes: table [N, S, L, C]. Unit of time: one token is ``--floater-delta``. Past the trained
    length the flow goes on. The discrete solve is differentiated, at every update
    unless ``--floater-update-interval`` is set.
    """

    name = "floater"
    title = "FLOATER"
    formula = "dp/dt = h(t, p), p at t = 0.1 i"
    source = "ICML 2020, equations 8, 10, 12, 13"
    part = FloaterStart
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
        # Between updates one table is kept, and it begins at position 0.
        return options["floater_update_interval"] == 1

    @classmethod
    def warning(cls, options: dict[str, Any], target: str) -> str | None:
        return training_warning(options, target)

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        options = spec.options
        self.clock = Clock.read(options)
        self.update_interval: int = options["floater_update_interval"]
        self._last_solves: dict[str, LastSolve] = {}  # by the names of the solvers
        self.dynamics: Any = None
        self.solvers = {}
        if options["floater_theta"] == SHARED:
            self.dynamics = initial_dynamics(spec, spec.dim)
            self._add_solver("")

    def _add_solver(self, name: str) -> None:
        spec, of_block = self.spec, f" of block {name}" if name else ""
        label = f"{'/'.join(spec.streams)} ({spec.side} positions){of_block}"
        self.solvers[name] = FlowSolver(
            solver_options(spec.options),
            label,
            spec.usual_length,
            self.clock,
            solver_candidates(spec.options),
        )

    def build_block(self, block_index: int) -> nn.Module:
        if self.dynamics is None:
            self._add_solver(str(block_index))
        return super().build_block(block_index)

    def rows(self, places: Places, blocks: Sequence[FloaterStart]) -> Tensor:
        tables = [self._rows(flow, places) for flow in self.flows(blocks)]
        return tables[0] if len(tables) == 1 else torch.cat(tables, dim=2)

    def flows(self, blocks: Sequence[FloaterStart]) -> list[_Flow]:
        """Return the flow of all blocks or, with ``--floater-theta block``, one for each."""
        if self.dynamics is not None:
            return [_Flow("", self.dynamics, blocks)]
        return [_Flow(str(b.block_index), b.dynamics, [b]) for b in blocks]

    def _rows(self, flow: _Flow, places: Places) -> Tensor:
        backwards = None
        if places.before:
            dynamics = BackwardDynamics(flow.dynamics)
            backwards = self._solved(flow, dynamics, places.before + 1, places.per_token)
        count = places.count - places.before
        # One row is p(0) alone. A second row gives the flow a (zero) gradient, as DDP expects.
        rows = self._solved(flow, flow.dynamics, max(count, 2), places.per_token)
        rows = rows if len(rows) == count else rows[:count]
        return rows if backwards is None else torch.cat([backwards[1:].flip(0), rows])

    def _solved(self, flow: _Flow, dynamics: Any, num_rows: int, per_token: int) -> Tensor:
        """Solve ``dynamics``, the flow's or its reverse, from p(0) on: [N, S, L, C]."""
        times = self.clock.of_tokens(num_rows, per_token)
        if self.training and self.update_interval > 1:
            return self._solved_at_intervals(flow, times)
        p0 = self._initial_values(flow.blocks)
        engine = self._engine(flow, p0, times)
        return self.solvers[flow.name].solve(dynamics, p0, times, **engine)

    def _engine(self, flow: _Flow, p0: Tensor, times: Tensor) -> dict[str, Any]:
        num_tokens = round(self.clock.position(times[-1].item())) + 1
        solver = self.solvers[flow.name]
        return solver.engine(flow.dynamics, p0, self.training, self.num_updates, num_tokens)

    def _solved_at_intervals(self, flow: _Flow, times: Tensor) -> Tensor:
        """Solve with a gradient at every K-th update; in between, reuse the table with zero gradients."""
        solve_now = self.num_updates % self.update_interval == 0
        last = self._last_solves.get(flow.name)
        if solve_now or last is None:  # a resumed run may start in between
            p0, solver = self._initial_values(flow.blocks), self.solvers[flow.name]
            engine = self._engine(flow, p0, times)
            last = self._last_solves[flow.name] = LastSolve(flow.dynamics, p0, solver, engine)
            if solve_now:
                table = solver.solve(flow.dynamics, p0, times, **engine)
                last.rows = table.detach()
                return table
        parameters = [*flow.dynamics.parameters(), *(block.values for block in flow.blocks)]
        return ZeroGradient.apply(last.table(times), *parameters)

    def forget(self) -> None:
        super().forget()
        self._last_solves = {}

    def _initial_values(self, blocks: Sequence[FloaterStart]) -> Tensor:
        return _Joined.apply(*(block.initial() for block in blocks))


class _Flow(NamedTuple):
    """Hold an h, and the blocks whose p(0) it starts from."""

    name: str  # of its solver
    dynamics: Any
    blocks: Sequence[FloaterStart]


class _Joined(torch.autograd.Function):
    """Stack the p(0) [S, C] of L blocks: [S, L, C].

    Each block's gradient comes back contiguous. torch's stack returns strided gradients, which are
    copied block by block.
    """

    @staticmethod
    def forward(ctx: Any, *starts: Tensor) -> Tensor:
        return torch.stack(starts, dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.transpose(0, 1).contiguous().unbind()
