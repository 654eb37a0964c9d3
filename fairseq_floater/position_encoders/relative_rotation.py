"""Read vectors or biases of distances off a flow that cannot grow: a rotation in logarithmic time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.relative_flow import (
    LOG_DISTANCE,
    DistanceFlow,
    FlowStart,
    row_width,
)
from fairseq_floater.position_encoders.rotation_flow import (
    RotationFlowPositions,
    largest_frequency,
)


class RelativeRotationPositions(DistanceFlow):
    """Turn every r(0) over distances: dr/dtau = w J r, so that r keeps its norm at any distance.

    Channels 2c and 2c + 1 turn at the learned frequency w_c. That is the general skew-symmetric h of
    ``rotation_flow`` in the basis of its planes: on keys and values another basis would change nothing,
    as every block learns its projections. Of a ``bias`` two heads share a frequency.

    Parameters: W / 2 a stack and S sides W a block.
    """

    name = RotationFlowPositions.name
    title = RotationFlowPositions.title
    formula = "dr/dtau = w J r, r at tau = ln(1 + |d|)"
    source = "this project"
    silent_at_zero = ("start.values",)
    options = RotationFlowPositions.options

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        width = row_width(spec)
        if width % 2:
            raise ValueError(
                f"--position-encoder rotation_flow turns pairs of channels, but has {width} with "
                "--position-target relative: an even number of heads (bias) or an even width of a head."
            )
        largest = largest_frequency(spec.options, spec.target)
        planes = torch.arange(1, width // 2 + 1)
        self.frequencies = nn.Parameter(largest * planes / len(planes))

    def start(self) -> FlowStart:
        # As long as Shaw's vectors at the start: Xavier's deviation for a few dozen rows.
        return FlowStart(self.spec, std=0.1)

    def trajectories(self, r0: Tensor, num_positions: int) -> Tensor:
        tau = LOG_DISTANCE.of_tokens(num_positions).to(r0)
        angles = tau[:, None] * self.frequencies.to(r0.dtype)  # [N, W / 2]
        cos, sin = (f(angles).view(-1, 1, 1, 1, angles.size(1)) for f in (torch.cos, torch.sin))
        even, odd = r0[..., 0::2], r0[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return turned.flatten(-2)
