"""Turn every p(0) by a flow that cannot grow: dp/dt = (A - A^T) p keeps its length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.floater_options import (
    RELATIVE_FORMS,
    RELATIVE_OPTIONS,
    TIME_OPTION,
    relative_faults,
)
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.signal import PositionSignal, StartingPoints
from fairseq_floater.position_encoders.transforms import Places

# Time between tokens, FLOATER's default. It sets how fast a frequency learns: by this times the rate.
DELTA = 0.1
# Largest initial frequency: radians a token; over distances radians a unit of ln(1 + |d|), half a turn
# from a token to its neighbour's neighbour, and two turns up to 60 tokens.
FREQUENCY, RELATIVE_FREQUENCY = 0.3, 3.0


def largest_frequency(options: dict[str, Any], target: str) -> float:
    """Return the largest initial frequency, ``--rotation-frequency`` or that of the target."""
    frequency: float | None = options["rotation_frequency"]
    if frequency is not None:
        return frequency
    return RELATIVE_FREQUENCY if target == "relative" else FREQUENCY


def rotation(skew: Tensor) -> Tensor:
    """Return exp(``skew``) [C, C] of a skew-symmetric matrix, in its dtype (float32 or float64).

    Taylor's series of degree 8 after scaling, then squarings. ``torch.matrix_exp`` takes 8 times as long
    with its gradient, the exponential of a matrix of twice the width, and is off by 1e-6 in float32: too
    much for a rotation that is squared until it turns by hundreds of positions. Of a matrix so large that
    rounding hides the angle nothing but NaN is returned, which the check of the table's range reports.
    """
    square = skew @ skew
    # A skew-symmetric matrix is normal, so the norm of its square bounds that of itself closely:
    # a quarter of its largest column sum, for a random one of 512 channels.
    norm = float(square.detach().abs().sum(dim=0).amax().sqrt())
    largest = 0.5 if skew.dtype == torch.float32 else 0.03  # the remainder is below rounding
    if not norm * torch.finfo(skew.dtype).eps < 1:
        return skew * math.nan
    squarings = max(0, math.frexp(norm / largest)[1])
    x, x2 = skew / 2.0**squarings, square / 4.0**squarings
    x3, x4 = x @ x2, x2 @ x2
    one = torch.eye(len(x), dtype=x.dtype, device=x.device)
    power = one + x + x2 / 2 + x3 / 6
    power = power + x4 @ (one / 24 + x / 120 + x2 / 720 + x3 / 5040 + x4 / 40320)
    for _ in range(squarings):
        power = power @ power
    return power


class StartingRows(StartingPoints):
    """Hold p(0) of one block, as long as the rows of a sinusoid, sqrt(C / 2)."""

    std = 0.5**0.5


class RotationFlowPositions(PositionSignal):
    """Solve FLOATER's equation 8 for a linear, skew-symmetric h: p(t) = exp(t (A - A^T)) p(0).

    The eigenvalues of A - A^T are imaginary: p is a sum of sinusoids whose frequencies, planes and
    phases are learned, equation 6 being one such sum. Rows keep their norm at any length, where the
    trajectory of FLOATER's h grows past the trained length; the inner product of two rows of a
    stream depends on their distance alone; and the flow has a closed form, so the table is a handful
    of matrix products instead of a solve. GRAPE (Zhang et al. 2025) lets exp(t L) of a skew-symmetric L
    act on queries and keys, as RoPE does; here it acts on p(0).

    One A of C x C parameters is shared by blocks and streams. Shapes: table [N, S, L, C].
    """

    name = "rotation_flow"
    title = "rotation flow"
    formula = "dp/dt = (A - A^T) p"
    source = "this project; a case of the paper's equation 8"
    part = StartingRows
    continuous = True
    before_start = True
    targets = (
        *PositionSignal.targets,
        "relative",
    )  # the last is another class, `relative_rotation.py`
    options = (
        Option(
            "--rotation-frequency",
            None,
            f"largest initial frequency: {FREQUENCY} radians a token; with --position-target relative, "
            f"unless its time is linear, {RELATIVE_FREQUENCY:g} radians a unit of ln(1 + distance)",
            float,
            above=0,
        ),
        TIME_OPTION,
        *RELATIVE_OPTIONS,
    )
    forms = ("", *RELATIVE_FORMS)

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterator[str]:
        yield from relative_faults(options, target)
        if target != "relative" and options["floater_time"] != TIME_OPTION.default:
            yield (
                f"`--floater-time` must be {TIME_OPTION.default} with --position-encoder {cls.name} and "
                f"--position-target {target}, but is {options['floater_time']} instead."
            )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        # For entries of deviation s the largest eigenvalue of A - A^T is about 2 s sqrt(2 C).
        largest = largest_frequency(spec.options, spec.target) / DELTA
        std = largest / (2 * (2 * spec.dim) ** 0.5)
        self.generator = nn.Parameter(torch.randn(spec.dim, spec.dim) * std)

    def rows(self, places: Places, blocks: Sequence[StartingPoints]) -> Tensor:
        step, before = DELTA / places.per_token, places.before
        backwards = self._rows(before + 1, -step, blocks)[1:].flip(0) if before else None
        rows = self._rows(places.count - before, step, blocks)
        return rows if backwards is None else torch.cat([backwards, rows])

    def _rows(self, num_rows: int, step: float, blocks: Sequence[StartingPoints]) -> Tensor:
        """Return the rows at times 0, ``step``, 2 ``step``, ...: [N, S, L, C]."""
        dtype = torch.promote_types(self.generator.dtype, torch.float32)
        if step < DELTA and not self.training:  # so many small turns would sum their rounding up
            dtype = torch.float64
        generator = self.generator.to(dtype)
        # p as a row vector: p(t + s) = p(t) exp(s (A - A^T)).
        power = rotation(step * (generator - generator.T))
        rows = torch.stack([block.values.to(dtype) for block in blocks], dim=1).unsqueeze(0)
        # Doubling: the known rows, turned by as many steps as they are, are the next ones.
        # Two rows at least, so that A has its (zero) gradient for one row too, as DDP expects.
        while True:
            rows = torch.cat([rows, rows @ power])
            if len(rows) >= num_rows:
                break
            power = power @ power
        return rows[:num_rows].to(torch.promote_types(self.generator.dtype, torch.float32))
