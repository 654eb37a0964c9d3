"""Define a token's time in the flow (appendix C's t_i): evenly spaced, or ever closer together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fairseq_floater.ode.kept import keep

LINEAR, LOG = "linear", "log"
# The default T of ``log``, in tokens.
DEFAULT_BEND = 32.0


@dataclass(frozen=True)
class Clock:
    """Give token i the time delta i, or delta T ln(1 + i / T) if time is bent.

    Near the first token both agree. At token 4 T the time is 4 delta T, or 1.6 delta T if bent.

    Attributes:
        delta: time between the first tokens.
        bend: T, in tokens; None: time is not bent.
    """

    delta: float
    bend: float | None = None

    @classmethod
    def read(cls, options: dict[str, Any]) -> Self:
        """Parse ``--floater-time`` (linear, log or log:T) from the encoder's ``options``, by ``dest``.

        Raises:
            ValueError: the value is not one of these.
        """
        value = str(options["floater_time"])
        kind, _, text = value.partition(":")
        if value == LINEAR:
            return cls(options["floater_delta"])
        try:
            bend = float(text) if text else DEFAULT_BEND
        except ValueError:
            bend = 0.0
        if kind != LOG or value == "log:" or not 0 < bend < float("inf"):
            raise ValueError(
                f"`--floater-time` must be linear, log or log:T with a positive T in tokens, but is "
                f"{value!r} instead."
            )
        return cls(options["floater_delta"], bend)

    def times(self, positions: Tensor) -> Tensor:
        """Return the times of ``positions``, which are in tokens and at least 0.

        At 10,000 tokens, float64 on the CPU is exact and float32 is not.
        """
        if self.bend is None:
            return self.delta * positions
        return self.delta * self.bend * torch.log1p(positions / self.bend)

    @keep(256)
    def of_tokens(self, num_rows: int, rows_per_token: int = 1) -> Tensor:
        """Return the times of positions 0, 1/r, 2/r, ... in tokens: float64 [N], cached."""
        return self.times(torch.arange(num_rows, dtype=torch.float64) / rows_per_token)

    def position(self, time: float) -> float:
        """Return the position of ``time`` in tokens: the inverse of :meth:`times`."""
        if self.bend is None:
            return time / self.delta
        return self.bend * math.expm1(time / (self.delta * self.bend))
