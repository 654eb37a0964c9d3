"""Store the weights of a model that only translates in the order that products of few rows read fastest.

A decoding step multiplies a handful of rows by every weight, and takes as long as reading them. Read
input channel by input channel, a weight [O, I] takes a quarter less time on a CPU than output by
output. The parameters themselves are moved, values and names unchanged: no copy could become
stale or be saved. `decoding_weights.py` makes copies that are faster still, of less precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.hooks import own_bias
from fairseq_floater.position_encoders.shared_options import FLOAT32
from fairseq_floater.transformer.decoding_weights import prepare


def lay_out(*projections: Any, weights: str = FLOAT32) -> None:
    """Move the weights [O, I] of ``projections`` side by side into memory, inputs first: [I, all O].

    With ``weights`` other than float32 each also gets a copy, by which it multiplies. Anything but linear
    maps stays as it is.
    """
    if not all(type(projection) is nn.Linear for projection in projections):
        return
    joint = torch.cat([projection.weight.detach().T for projection in projections], dim=1)
    widths = [projection.out_features for projection in projections]
    for projection, of_inputs in zip(projections, joint.split(widths, dim=1)):
        projection.weight.data = of_inputs.T
        if weights != FLOAT32:
            prepare(projection, weights)


def joint_weight(*projections: Any) -> Tensor | None:
    """Return the weights of ``projections`` as one, [all O, I], a view; None unless they lie side by side.

    Each may have been replaced since :func:`lay_out`, by ``.half()``, a copy, or ``p.data``.
    """
    if any(own_bias(projection) is None for projection in projections):
        return None
    first = projections[0].weight
    width = sum(projection.out_features for projection in projections)
    if first.stride() != (1, width):
        return None
    address = first.data_ptr()
    for projection in projections:
        weight: Tensor = projection.weight
        if weight.stride() != (1, width) or weight.data_ptr() != address:
            return None
        address += projection.out_features * weight.element_size()
    return first.as_strided((width, first.size(1)), (1, width))
