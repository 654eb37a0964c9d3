"""Make flows to test engines on: from nearly constant to oscillating, and those of trained models.

How well an engine does depends on how strong a flow is and how often its ReLUs bend. Training changes both.
Letters: R rows (streams times blocks), C channels, N positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_floater.checkpoints.families import architecture, family_of
from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint, model_args
from fairseq_floater.checkpoints.rebuild import build_model
from fairseq_floater.ode import Clock, PositionDynamics
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.floater_options import solver_candidates
from fairseq_floater.transformer.owners import positions_of

# Positions on which the flows of a known motion are fitted, and their noisy copies.
FITTED_POSITIONS = 256
NOISY_COPIES = 4
NOISE = 0.3
RIDGE = 1e-4


class Flow(NamedTuple):
    """Dynamics with their initial values ``p0`` [R, C].

    ``clock`` gives the times of tokens, ``candidates`` the engines that ``auto`` tries (empty: the device's).
    """

    name: str
    dynamics: PositionDynamics
    p0: Tensor
    clock: Clock = Clock(0.1)
    candidates: Sequence[tuple[str, float]] = ()


def standard_flows(dim: int, rows: int, seed: int) -> Iterator[Flow]:
    """Make flows like those that were observed, from weak to strong.

    ``small`` and ``linear``: the two initialisations (weights normal with deviation 0.01;
    ``nn.Linear``'s own), p(0) normal with deviation 0.1. ``attracted``: fitted to run beside a
    sinusoid and back to it. ``oscillating``: fitted to turn by up to 0.1 radians a token. ``fast``: 1
    radian a token, beyond what any engine resolves at these steps.
    """
    makers = {
        "small": partial(_initialised, std=0.01),
        "linear": partial(_initialised, std=None),
        "attracted": partial(_fitted, frequency=1.0, attraction=0.5),
        "oscillating": partial(_fitted, frequency=1.0, attraction=None),
        "fast": partial(_fitted, frequency=10.0, attraction=None),
    }
    for name, make in makers.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            dynamics, p0 = make(dim, rows)
        yield Flow(name, dynamics, p0)


def _initialised(dim: int, rows: int, std: float | None) -> tuple[PositionDynamics, Tensor]:
    dynamics = PositionDynamics(dim)
    dynamics.reset_parameters(std)
    return dynamics, 0.1 * torch.randn(rows, dim)


def _fitted(
    dim: int, rows: int, frequency: float, attraction: float | None
) -> tuple[PositionDynamics, Tensor]:
    """Fit h's second layer by ridge regression, on a random first layer, to slopes around sinusoids.

    Args:
        dim: C, channels.
        rows: R, sinusoids of random phase.
        frequency: the largest, in radians a unit of time.
        attraction: a; the slope is the sinusoid's, minus a times the distance from it. None: the slope
            of the rotation itself.
    """
    half = dim // 2
    frequencies = frequency * 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    phases = 2 * math.pi * torch.rand(rows, half, dtype=torch.float64)
    times = 0.1 * torch.arange(FITTED_POSITIONS, dtype=torch.float64)
    angles = times[:, None, None] * frequencies + phases
    truth = torch.cat([angles.sin(), angles.cos()], dim=-1)
    noise = NOISE * torch.randn(NOISY_COPIES, *truth.shape, dtype=torch.float64)
    points = truth + noise
    turned = truth if attraction is not None else points
    sines, cosines = turned.split(half, dim=-1)
    slopes = torch.cat([frequencies * cosines, -frequencies * sines], dim=-1)
    if attraction is not None:
        slopes = slopes - attraction * noise
    w1 = torch.randn(dim, dim, dtype=torch.float64) / math.sqrt(dim)
    bias1 = torch.randn(dim, dtype=torch.float64)
    features = torch.relu(points.reshape(-1, dim) @ w1.T + bias1)
    features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    gram = features.T @ features
    gram.diagonal().add_(RIDGE * len(features))
    solution = torch.linalg.solve(gram, features.T @ slopes.expand_as(points).reshape(-1, dim))

    dynamics = PositionDynamics(dim)
    nothing = w1.new_zeros(dim, 1)  # the motion does not depend on time itself
    with torch.no_grad():
        dynamics.weight1.copy_(torch.cat([w1, nothing], dim=1))
        dynamics.bias1.copy_(bias1)
        dynamics.weight2.copy_(torch.cat([solution[:-1].T, nothing], dim=1))
        dynamics.bias2.copy_(solution[-1])
    return dynamics, truth[0].float()


def trained_flows(checkpoint: str) -> list[Flow]:
    """Read the flows of a model of the plugin, with its own initial values.

    Raises:
        UserError: the file is not a checkpoint, or its model has no flow.
    """
    state = load_checkpoint(checkpoint)
    args = model_args(state, checkpoint)
    model, family = build_model(state, args, checkpoint), family_of(architecture(args))
    flows = []
    for positions in positions_of(family.stacks(model)) if family else ():
        signal = positions.encoder
        if isinstance(signal, FloaterPositions):
            name = f"trained: {positions.stack} {'/'.join(signal.spec.streams)}"
            candidates = solver_candidates(signal.spec.options)
            for flow in signal.flows(positions.parts):
                block = f", block {flow.name}" if flow.name else ""
                p0 = torch.cat([part.initial() for part in flow.blocks]).detach()
                dynamics = flow.dynamics.float()
                flows.append(Flow(name + block, dynamics, p0, signal.clock, candidates))
    if not flows:
        raise CheckpointError(f"{checkpoint} has no flow over positions.")
    return flows
