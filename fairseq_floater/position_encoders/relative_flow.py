"""Take vectors or biases of distances from FLOATER's flow or a rotation, as relative positions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.ode import ADVICE, Clock
from fairseq_floater.ode.clock import LOG
from fairseq_floater.ode.flow_solver import FlowSolver
from fairseq_floater.position_encoders.base import EncoderSpec, check_pairs
from fairseq_floater.position_encoders.floater import (
    HIDDEN_INITIAL_VALUE_STD,
    FloaterPositions,
    FlowPositions,
    RescaledStart,
    initial_dynamics,
)
from fairseq_floater.position_encoders.floater_options import (
    FLOATER_OPTIONS,
    ROTATION,
    XL,
    floater_faults,
    relative_faults,
    trains_start,
)
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import AttentionPart
from fairseq_floater.position_encoders.rope import turn_pairs
from fairseq_floater.position_encoders.rotation_flow import (
    DELTA,
    RotationFlowPositions,
    RotationStart,
    largest_frequency,
)
from fairseq_floater.position_encoders.shaw import DistanceVectors
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows
from fairseq_floater.position_encoders.xl import DistanceScores, XlPart

# tau = ln(1 + |d|).
LOG_DISTANCE = Clock(delta=1.0, bend=1.0)


class DistanceStart(RescaledStart):
    """Hold r(0) of one block, or of the stack, for each stream and side: ``values`` [S, sides, W]."""

    def __init__(self, spec: EncoderSpec):
        options = spec.options  # those of FLOATER, or of a rotation
        super().__init__(options.get("floater_lr_scale", 1.0))
        scale = options.get("floater_init_scale")
        if scale is None:
            # The norm of a sinusoid; or of Shaw's vectors: Xavier's deviation for a few dozen rows is 0.1.
            is_xl = relative_form(options) == XL
            scale = RotationStart.std if is_xl else HIDDEN_INITIAL_VALUE_STD
        shape = (_streams(spec), spec.sides, row_width(spec))
        self.values = nn.Parameter(scale * torch.randn(shape) / self.lr_scale)
        self.requires_grad_("floater_train" not in options or trains_start(options))


def relative_form(options: dict[str, Any]) -> str:
    return options["floater_relative"] or "keys"


def distance_clock(options: dict[str, Any]) -> Clock:
    """Return the clock that gives distances their times, from complete options; only ``xl`` has a choice."""
    if relative_form(options) != XL or options["floater_time"] == LOG:
        return LOG_DISTANCE
    return Clock.read({"floater_delta": DELTA, **options})


def _streams(spec: EncoderSpec) -> int:
    return 2 if relative_form(spec.options) == "values" else 1


def row_width(spec: EncoderSpec) -> int:
    """Return W: the number of heads for ``bias``, the model's width for ``xl``, else a head's width."""
    widths = {"bias": spec.heads, XL: spec.dim}
    return widths.get(relative_form(spec.options), spec.head_dim)


class FlowVectors(DistanceVectors):
    """Hold the starting points of one block's vectors of distances; the hooks are Shaw's."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.needs_weights = _streams(spec) == 2
        self.start = DistanceStart(spec)


class FlowBias(AttentionPart):
    """Hold the starting points of one block's biases of distances, one for each head.

    Tables: the row of each pair of tokens, [B or 1, T, S], and the biases, [R, H].
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.start = DistanceStart(spec)

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor:
        rows, biases = tables
        return gather_rows(biases, rows).permute(0, 3, 1, 2)


class DistanceFlow(DistanceScores):
    """Follow a flow over distances, r at tau = ln(1 + |d|), from an r(0) for each block, stream and side.

    ``--floater-relative keys``: r is added to key j as query i sees it, like Shaw's A^K. ``values``: a
    second r is added to the values, like A^V. ``bias``: r has a channel for each head and is added to the
    logits. ``xl``: the stack has one r(0) for each side, as wide as the model, and r is scored like
    Transformer-XL's R, with a u, v and W_R in each block.

    In logarithmic time, four times the trained length is 1.4 units past its end. ``xl`` also takes
    ``--floater-time`` linear or log:T. Distances that training moves are rounded, except in ``xl``.
    Subclasses define the flow.

    Shapes: table [N, sides, L, S, W]; W = D, or H for ``bias``; two sides in an encoder, for keys
    before the query and after it, one in a decoder. ``xl``: [N, sides, L, C].
    """

    targets = ("relative",)
    acts_on = "logits"
    continuous = True

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        yield from relative_faults(options, target)
        fixed = {"floater_update_interval", "floater_theta", "floater_gap"}
        if relative_form(options) != XL:
            fixed.add("floater_time")
        if distance_clock(options) is LOG_DISTANCE:
            fixed.add("floater_delta")
        for option in cls.options:
            value = options[option.dest]
            if option.dest in fixed and value != option.default:
                yield (
                    f"`{option.name}` must be {option.default} with --position-target relative, but is "
                    f"{value} instead: distances have a time of their own, ln(1 + |d|), and the stack has "
                    "one h, solved at every update."
                )

    @classmethod
    def rounds_distances(cls, options: dict[str, Any]) -> bool:
        return relative_form(options) != XL

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        options = spec.options
        self.form, self.clock = relative_form(options), distance_clock(options)
        if self.form == XL:
            self.start = DistanceStart(spec)
            # Either W_R or r is zero: if both were, neither would learn.
            has_zero_r = options["xl_projection"] == "off" or options.get("floater_init_scale") == 0
            others = self.silent_at_zero if has_zero_r else ("projection.weight",)
            self.silent_at_zero = ("u", *others)

    def initial_frequencies(self) -> Tensor:
        """Return the frequencies of a rotation, one for each pair of channels, evenly spaced: [W / 2]."""
        spec, width = self.spec, row_width(self.spec)
        whose = {"bias": "a row of biases", XL: f"the {spec.side} side"}.get(self.form, "a head")
        check_pairs(self.name, width, whose, spec)
        if self.clock is LOG_DISTANCE:
            largest = largest_frequency(spec.options, spec.target)
        else:  # in radians a token
            largest = largest_frequency(spec.options, "hidden") / self.clock.delta
        planes = torch.arange(1, width // 2 + 1)
        return largest * planes / len(planes)

    @abstractmethod
    def trajectories(self, r0: Tensor, distances: Tensor) -> Tensor:
        """Return r at ``distances``, float64 [N], from ``r0`` [L, S, sides, W]: [N, L, S, sides, W]."""

    def build_block(self, block_index: int) -> AttentionPart:
        parts = {"bias": FlowBias, XL: XlPart}
        return parts.get(self.form, FlowVectors)(block_index, self.spec)

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        # One row is r(0) alone. A second row gives the flow a (zero) gradient, as DDP expects.
        distances = replace(places, count=max(places.count, 2)).in_tokens()
        starts = [self.start] if self.form == XL else [block.start for block in blocks]
        r0 = torch.stack([start.initial() for start in starts])
        rows = self.trajectories(r0, distances).permute(0, 3, 1, 2, 4)[: places.count]
        return self.projected(rows[:, :, 0, 0], blocks) if self.form == XL else rows

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        if self.form == XL:
            return super().prepare(at, blocks, dtype)
        distances = (at.distances / at.rows_per_token).round().long()
        furthest = math.ceil((at.num_rows - 1) / at.rows_per_token)
        table = self(furthest + 1, blocks, dtype).flatten(0, 1)  # [R, L, S, W]
        rows = self.signed_rows(distances)
        if self.form == "bias":
            return [(rows, of_block[:, 0]) for of_block in table.unbind(1)]
        return [(rows[:, None], *of_block.unbind(1)) for of_block in table.unbind(1)]


class RelativeFlowPositions(FlowPositions, DistanceFlow):
    """Follow FLOATER's flow over distances, dr/dtau = h(tau, r).

    The stack owns h, and each block its r(0). Parameters: 2 W (W + 2) a stack and S sides W a block;
    ``xl``: 2 C (C + 2) + sides C a stack, and those of `xl.py` a block.
    """

    name = FloaterPositions.name
    title = FloaterPositions.title
    formula = "dr/dtau = h(tau, r), r at tau = ln(1 + |d|)"
    source = "this project, after ICML 2020, equation 8"
    range_advice = ADVICE
    silent_at_zero: tuple[str, ...] = ("start.values", "dynamics.weight2", "dynamics.bias2")
    options = FLOATER_OPTIONS

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        yield from floater_faults(options, target)
        yield from super().faults(options, target)

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.dynamics = initial_dynamics(spec, row_width(spec))
        if spec.options["floater_start"] == ROTATION:
            planes = torch.diag(self.initial_frequencies())
            generator = torch.kron(planes, torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
            self.dynamics.start_linear(generator, reach=4)  # r has a standard deviation below 1
            # A warm start sets r(0) to zero, which a rotation keeps.
            others = (name for name in self.silent_at_zero if not name.startswith("dynamics."))
            self.silent_at_zero = tuple(others)
        label = f"distances ({spec.side} side)"
        self.solvers = {"": FlowSolver(spec.options, label, spec.usual_length, self.clock)}

    def trajectories(self, r0: Tensor, distances: Tensor) -> Tensor:
        num_tokens = math.ceil(distances[-1].item()) + 1
        solver = self.solvers[""]
        engine = solver.engine(self.dynamics, r0, self.training, self.num_updates, num_tokens)
        return solver.solve(self.dynamics, r0, self.clock.times(distances), **engine)


class RelativeRotationPositions(DistanceFlow):
    """Turn every r(0) over distances, dr/dtau = w J r, so that r keeps its norm at any distance.

    Channels 2c and 2c + 1 turn at the learned frequency w_c. This is the general skew-symmetric h of
    ``rotation_flow`` in the basis of its planes. Another basis would change nothing on keys and values,
    because every block learns its projections. In a ``bias``, two heads share a frequency.

    Parameters: W / 2 a stack and S sides W a block; ``xl``: C / 2 + sides C a stack, and those of `xl.py`
    a block. ``xl`` is ``--xl-learned`` with learned phases, in logarithmic time unless ``--floater-time``
    says otherwise.
    """

    name = RotationFlowPositions.name
    title = RotationFlowPositions.title
    formula = "dr/dtau = w J r, r at tau = ln(1 + |d|)"
    source = "this project"
    silent_at_zero = ("start.values",)
    options = RotationFlowPositions.options

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.frequencies = nn.Parameter(self.initial_frequencies())

    def trajectories(self, r0: Tensor, distances: Tensor) -> Tensor:
        tau = self.clock.times(distances).to(r0)
        angles = tau[:, None] * self.frequencies.to(r0.dtype)
        angles = angles[:, None, None, None]  # [N, 1, 1, 1, W / 2]
        return turn_pairs(r0, angles.cos(), angles.sin())
