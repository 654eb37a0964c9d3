"""Turn every p(0) by the flow dp/dt = (A - A^T) p, which keeps the norm of p."""

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

# Time between tokens, FLOATER's default. It multiplies the learning rate of a frequency too.
DELTA = 0.1
# Largest initial frequency in radians a token; over distances, in radians a unit of ln(1 + |d|): half a
# turn up to the second neighbour, and two turns up to 60 tokens.
FREQUENCY, RELATIVE_FREQUENCY = 0.3, 3.0


def largest_frequency(options: dict[str, Any], target: str) -> float:
    """Return the largest initial frequency: ``--rotation-frequency`` or the target's default."""
    frequency: float | None = options.get("rotation_frequency")  # FLOATER has no such option
    if frequency is not None:
        return frequency
    return RELATIVE_FREQUENCY if target == "relative" else FREQUENCY


def rotation(skew: Tensor) -> Tensor:
    """Return exp(``skew``) [C, C] of a skew-symmetric matrix, in its dtype (float32 or float64).

    A Taylor series of degree 8 after scaling, then squarings. ``torch.matrix_exp`` takes 8 times as long
    with its gradient, the exponential of a matrix twice as wide. It is also off by 1e-6 in float32, too
    much for a rotation that is squared until it turns by hundreds of positions. If the matrix is so large
    that rounding hides the angle, the result is NaN, which the check of the table's range reports.
    """
    square = skew @ skew
    # A skew-symmetric matrix is normal, so its norm is the root of that of its square. This bound is close:
    # for a random matrix of 512 channels, a quarter of the bound by its largest column sum.
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


class RotationStart(StartingPoints):
    """Hold p(0) of one block, with the norm of a sinusoid's rows, sqrt(C / 2)."""

    std = 0.5**0.5


class RotationFlowPositions(PositionSignal):
    """Solve FLOATER's equation 8 for a linear, skew-symmetric h: p(t) = exp(t (A - A^T)) p(0).

    The eigenvalues of A - A^T are imaginary, so p is a sum of sinusoids with learned frequencies, planes
    and phases; equation 6 is one such sum. Rows keep their norm at any length, while the trajectory of
    FLOATER's h grows past the trained length. The inner product of two rows of a stream depends on their
    distance alone. The flow has a closed form, so the table takes a few matrix products instead of a
    solve. GRAPE (Zhang et al. 2025) applies exp(t L) of a skew-symmetric L to queries and keys, as RoPE
    does; here it is applied to p(0).

    One A of C x C parameters is shared by blocks and streams. Shapes: table [N, S, L, C].
    """

    name = "rotation_flow"
    title = "rotation flow"
    formula = "dp/dt = (A - A^T) p"
    source = "this project; a case of the paper's equation 8"
    part = RotationStart
    continuous = True
    before_start = True
    targets = (*PositionSignal.targets, "relative")  # relative: RelativeRotationPositions
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
        # For entries of standard deviation s, the largest eigenvalue of A - A^T is about 2 s sqrt(2 C).
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
        if step < DELTA and not self.training:  # rounding would add up over so many small turns
            dtype = torch.float64
        generator = self.generator.to(dtype)
        # p as a row vector: p(t + s) = p(t) exp(s (A - A^T)).
        power = rotation(step * (generator - generator.T))
        rows = torch.stack([block.values.to(dtype) for block in blocks], dim=1).unsqueeze(0)
        # Doubling: n known rows, turned by n steps, are the next n rows.
        # At least two rows, so that A has a (zero) gradient for one row too, as DDP expects.
        while True:
            rows = torch.cat([rows, rows @ power])
            if len(rows) >= num_rows:
                break
            power = power @ power
        return rows[:num_rows].to(torch.promote_types(self.generator.dtype, torch.float32))
