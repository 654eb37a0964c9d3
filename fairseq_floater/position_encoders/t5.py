"""Learn a bias of the logits for each bucket of distances (T5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.in_attention import DistanceBias
from fairseq_floater.position_encoders.options import Option


def log_buckets(distances: Tensor, count: int, furthest: float) -> Tensor:
    """Return the bucket 0 .. count - 1 of each absolute distance: int64, of any shape.

    Below count / 2 each distance has its own bucket, and stretched distances (``--position-stretch``) are
    rounded. Further buckets widen with the logarithm up to ``furthest``, and the last bucket holds all
    larger distances.

    Args:
        distances: real, at least 0.
        count: number of buckets.
        furthest: the distance at which the logarithmic scale ends, more than count / 2.
    """
    exact = count // 2
    beyond = torch.log(distances.clamp(min=exact) / exact) / math.log(furthest / exact)
    wide = exact + (beyond * (count - exact)).long()
    return torch.where(distances < exact, distances.round().long(), wide).clamp(max=count - 1)


class T5Positions(DistanceBias):
    """Add beta_h[bucket(d)] to the logits, one table for all blocks of a stack.

    A decoder uses all buckets for d >= 0, an encoder half of them for each side. Past
    ``--t5-max-distance`` the bias is constant. Biases start at zero, and those of buckets that no training
    sentence reaches stay there, so for longer test sentences the maximum must lie below the trained
    length. Unlike in T5, logits are divided by sqrt(D).

    Parameters: buckets * H a stack.
    """

    name = "t5"
    title = "T5 bias"
    formula = "logits + beta_h[bucket(i - j)]"
    source = "Raffel et al. 2020"
    limit_option = "--t5-max-distance"
    silent_at_zero: tuple[str, ...] = ("weight",)
    options: ClassVar[tuple[Option, ...]] = (
        Option("--t5-buckets", 32, "buckets of distances, of both sides together", int),
        Option("--t5-max-distance", 128, "distance from which on all share a bucket", int),
    )

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        buckets, furthest = options["t5_buckets"], options["t5_max_distance"]
        if buckets < 4 or buckets % 4:
            yield (
                f"`--t5-buckets` must be a multiple of 4, but is {buckets} instead: half of each "
                "side's are for single distances."
            )
        if furthest <= buckets // 2:
            yield (
                f"`--t5-max-distance` must be more than {buckets // 2}, half of --t5-buckets, but is "
                f"{furthest} instead."
            )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.weight = nn.Parameter(torch.zeros(spec.options["t5_buckets"], spec.heads))

    def biases(self, distances: Tensor) -> Tensor:
        count = len(self.weight) if self.spec.causal else len(self.weight) // 2
        furthest = self.spec.options["t5_max_distance"]
        buckets = log_buckets(distances.abs(), count, furthest)
        return self.weight.float()[buckets + count * (distances < 0)]
