"""Read vectors or biases of distances off a flow in logarithmic time: FLOATER, made relative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from fairseq_floater.ode import ADVICE, Clock, PositionDynamics, RescaledModule
from fairseq_floater.ode.clock import LINEAR
from fairseq_floater.ode.flow_solver import FlowSolver
from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.floater import HIDDEN_INITIAL_VALUE_STD, FloaterPositions
from fairseq_floater.position_encoders.floater_training import trains_dynamics, trains_start
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import AttentionPart, AttentionPositions
from fairseq_floater.position_encoders.shaw import DistanceVectors
from fairseq_floater.position_encoders.transforms import At, gather_rows

# tau = ln(1 + |d|).
LOG_DISTANCE = Clock(delta=1.0, bend=1.0)


class FlowStart(RescaledModule):
    """Hold r(0) of one block, for each stream and side: ``values`` [S, sides, W]."""

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec.options["floater_lr_scale"])
        scale = spec.options["floater_init_scale"]
        std = HIDDEN_INITIAL_VALUE_STD if scale is None else scale
        shape = (_streams(spec), 1 if spec.causal else 2, _width(spec))
        self.values = nn.Parameter(std * torch.randn(shape) / self.lr_scale)

    def initial(self) -> Tensor:
        """Return r(0) in at least float32: [S, sides, W]."""
        dtype = torch.promote_types(self.values.dtype, torch.float32)
        return self.values.to(dtype) * self.lr_scale


def relative_form(options: dict[str, Any]) -> str:
    """Return what ``--floater-relative`` says: keys, values or bias."""
    return options["floater_relative"] or "keys"


def _streams(spec: EncoderSpec) -> int:
    return 2 if relative_form(spec.options) == "values" else 1


def _width(spec: EncoderSpec) -> int:
    return spec.heads if relative_form(spec.options) == "bias" else spec.head_dim


class FlowVectors(DistanceVectors):
    """Hold where one block's vectors of distances start; its hooks are Shaw's."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.needs_weights = _streams(spec) == 2
        self.start = FlowStart(spec)


class FlowBias(AttentionPart):
    """Hold where one block's biases of distances start, one for each head.

    Tables: the row of each pair of tokens, [B or 1, T, S], and the biases, [R, H].
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.start = FlowStart(spec)

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor:
        rows, biases = tables
        return gather_rows(biases, rows).permute(0, 3, 1, 2)


class RelativeFlowPositions(AttentionPositions):
    """Follow one flow dr/dtau = h(tau, r) over distances, tau = ln(1 + |d|), from the r(0) of each side.

    ``--floater-relative keys``: r is added to key j as query i sees it, as Shaw's A^K; ``values``: a
    second one to its value, as A^V; ``bias``: r has a channel for each head and is added to the logits.
    h is the stack's; each block has its r(0), for keys before the query and, in an encoder, behind it.
    In logarithmic time four times the trained length lies 1.4 units past its end. Distances between
    two whole ones (training that moves positions) go to the nearer.

    Shapes: table [N, sides, L, S, W]; W = D, or H for ``bias``.
    Parameters: 2 W (W + 2) a stack and S sides W a block.
    """

    name = FloaterPositions.name
    title = FloaterPositions.title
    formula = "dr/dtau = h(tau, r), r at tau = ln(1 + |d|)"
    source = "this project, after ICML 2020, equation 8"
    targets = ("relative",)
    acts_on = "logits"
    inductive = True
    data_driven = True
    parameter_efficient = True
    continuous = True
    range_advice = ADVICE
    silent_at_zero = ("start.values", "dynamics.weight2", "dynamics.bias2")
    options = FloaterPositions.options

    @classmethod
    def check_options(cls, options: dict[str, Any], target: str) -> None:
        FloaterPositions.check_options(options, target)
        usual = {option.dest: option for option in cls.options}
        for dest in ("floater_delta", "floater_time", "floater_update_interval"):
            option = usual[dest]
            if options[dest] != option.default:
                raise ValueError(
                    f"`{option.name}` must be {option.default} with --position-target relative, but is "
                    f"{options[dest]} instead: time is ln(1 + |d|), and solved at every update."
                )

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        what = {
            "keys": "vectors on keys",
            "values": "vectors on keys and values",
            "bias": "a bias for each head",
        }[relative_form(options)]
        solver = FloaterPositions.describe({**options, "floater_time": LINEAR}, target)
        return f"{what}, time ln(1 + distance), {solver.partition(', ')[2]}"

    @classmethod
    def rounds_distances(cls, options: dict[str, Any]) -> bool:
        return True

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        options = spec.options
        self.dynamics = PositionDynamics(
            _width(spec), options["floater_time_scale"], options["floater_lr_scale"]
        )
        self.dynamics.reset_parameters(options["floater_init_scale"])
        self.dynamics.requires_grad_(trains_dynamics(options))
        self.solver = FlowSolver(options, f"distances ({spec.side} side)", clock=LOG_DISTANCE)
        self.num_updates = 0

    def build_block(self, block_index: int) -> AttentionPart:
        is_bias = relative_form(self.spec.options) == "bias"
        part = (FlowBias if is_bias else FlowVectors)(block_index, self.spec)
        return part.requires_grad_(trains_start(self.spec.options))

    def compute(self, num_positions: int, blocks: Sequence[Any]) -> Tensor:
        # One row is r(0) alone: a second one gives the flow its (zero) gradient, as DDP expects.
        times = LOG_DISTANCE.of_tokens(max(num_positions, 2))
        r0 = torch.stack([block.start.initial() for block in blocks])  # [L, S, sides, W]
        engine = self.solver.engine(
            self.dynamics, r0, self.training, self.num_updates, num_positions
        )
        rows = self.solver.solve(self.dynamics, r0, times, **engine)
        return rows.permute(0, 3, 1, 2, 4)[:num_positions]

    def prepare(self, at: At, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        distances = (at.distances / at.rows_per_token).round().long()
        furthest = math.ceil((at.num_rows - 1) / at.rows_per_token)
        table = self(furthest + 1, blocks, dtype).flatten(0, 1)  # [R, L, S, W]
        rows = self.signed_rows(distances)
        if relative_form(self.spec.options) == "bias":
            return [(rows, of_block[:, 0]) for of_block in table.unbind(1)]
        return [(rows[:, None], *of_block.unbind(1)) for of_block in table.unbind(1)]

    def statistics(self) -> dict[str, Any]:
        return self.solver.statistics()

    def set_num_updates(self, num_updates: int) -> None:
        """Take the number of updates so far, from fairseq's trainer before each."""
        self.num_updates = num_updates

    def train(self, mode: bool = True) -> Self:
        # After validation the error is measured anew, as in a run resumed from the checkpoint saved there.
        if mode != self.training:
            self.forget()
        return super().train(mode)

    def forget(self) -> None:
        super().forget()
        self.solver.forget()
