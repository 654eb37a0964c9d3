"""Compute positions by a recurrence, p_{i+1} = RNN(z_i, p_i) (paper, equation 14 and Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.signal import PositionSignal, StartingPoints
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.position_encoders.transforms import Places

INPUTS = ("scalar", "vector", "none")
QKV_WEIGHT_STD = 0.01


class RnnStart(StartingPoints):
    """Hold p_0 of one block."""

    std = 0.1


class RecurrentPositions(PositionSignal):
    """Run one recurrence, shared by blocks and streams, from the p_0 of each.

    A step applies K maps ``tanh(Linear([z_i; x]))`` in sequence, each from C + |z| to C channels; the
    first has x = p_i. The paper gives only the counts of Table 6, which determine K:

    ======  ======  ===  ==============================  =========  ======================
    layers  z_i     K    one map at C = 512              in all     Table 6 (per recurrence)
    ======  ======  ===  ==============================  =========  ======================
    1       scalar  1    Linear(513, 512) = 263,168      263,168    263.2K
    2       scalar  2    the same                        526,336    526.3K
    1       none    1    Linear(512, 512) = 262,656      262,656    -
    1       vector  2    Linear(1024, 512) = 524,800     1,049,600  1,050.0K
    2       vector  4    the same                        2,099,200  -
    ======  ======  ===  ==============================  =========  ======================

    So we take a layer with vector input as two maps (inferred: no simpler cell comes as close).
    z_i is the number i, or fairseq's sinusoid of position i, or nothing. tanh keeps every row within
    [-1, 1] at any length.

    Shapes: table [N, S, L, C].
    """

    name = "rnn"
    title = "RNN"
    formula = "p_{i+1} = RNN(z_i, p_i)"
    source = "paper's equation 14, Table 6; Liu et al., ICML 2020"
    part = RnnStart
    targets = ("qkv", "hidden")
    acts_on = "q, k, v"
    options = (
        Option("--rnn-layers", "1", "layers of the recurrence", str, ("1", "2")),
        Option(
            "--rnn-input",
            "scalar",
            "z_i: the number i (scalar), its sinusoid (vector), or nothing (none)",
            str,
            INPUTS,
        ),
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.is_vector = spec.options["rnn_input"] == "vector"
        self.input_size = {"scalar": 1, "vector": spec.dim, "none": 0}[spec.options["rnn_input"]]
        count = int(spec.options["rnn_layers"]) * (2 if self.is_vector else 1)
        self.maps = nn.ModuleList(
            nn.Linear(self.input_size + spec.dim, spec.dim) for _ in range(count)
        )
        if spec.target == "qkv":
            self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Set small weights that ignore z_i; with p_0 = 0 every row is exactly zero.

        The columns of z_i and the biases get a gradient from the start, so the rows leave zero in training.
        """
        with torch.no_grad():
            linears: list[Any] = list(self.maps)
            for linear in linears:
                linear.weight.normal_(0.0, QKV_WEIGHT_STD)
                linear.weight[:, : self.input_size] = 0.0
                linear.bias.zero_()

    def rows(self, places: Places, blocks: Sequence[StartingPoints]) -> Tensor:
        p = torch.stack([block.values for block in blocks], dim=1)
        p = p.to(torch.promote_types(p.dtype, torch.float32))  # [S, L, C]
        linears: list[Any] = list(self.maps)
        weights = [linear.weight.to(p.dtype) for linear in linears]
        # Each map's term from the inputs is known before the first step: [N, C].
        inputs = self._inputs(places.count).to(p)
        driven = [
            inputs @ weight[:, : self.input_size].T + linear.bias.to(p.dtype)
            for weight, linear in zip(weights, linears)
        ]
        recurrent = [weight[:, self.input_size :].T for weight in weights]
        rows = [p]
        # At least one step, so that one row too gives every parameter a (zero) gradient, as DDP expects.
        for i in range(max(places.count - 1, 1)):
            for drive, weight in zip(driven, recurrent):
                p = torch.tanh(p @ weight + drive[i])
            rows.append(p)
        return torch.stack(rows)[: places.count]

    def _inputs(self, num_positions: int) -> Tensor:
        if self.is_vector:
            return sinusoid_rows(num_positions, self.spec.dim, self.spec.padding_idx)
        return torch.arange(num_positions, dtype=torch.float32)[:, None][:, : self.input_size]
