"""Interpolate from a uniform grid in time onto any times, by cubic Hermite polynomials.

The grid starts at the first time and never depends on the last one, so a row of the result does not
depend on how many rows follow it. The interpolant uses values and slopes at the grid points,
which every engine has anyway; its error is of fourth order.
"""

from __future__ import annotations

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.ode.kept import keep


def constant_like(values: Tensor, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Copy ``values`` from the CPU to the device of ``like``, in its dtype or ``dtype``.

    An ordinary copy to a GPU makes the host wait for all earlier work; this one does not.
    """
    values = values.to(like.dtype if dtype is None else dtype)
    if like.is_cuda:
        return values.pin_memory().to(like.device, non_blocking=True)
    return values.to(like.device)


class HermiteGrid:
    """Place each requested time on the uniform grid t0, t0 + step, t0 + 2 step, ...

    Interpolation and its transpose are weighted sums of few rows, one kernel each (`embedding_bag`).

    Args:
        times: [N] float64, increasing, on any device.
        step: grid spacing in units of time.
        like: gives dtype and device of the interpolation weights.
        multiple: the number of steps is rounded up to a multiple of this.
    """

    def __init__(self, times: Tensor, step: float, like: Tensor, multiple: int = 1):
        self.start = float(times[0])
        self.step = step
        # Positions on the grid in float64: in float32, t = 1000 is known to 6e-5 only.
        location = (times.double().cpu() - self.start) / step
        left = location.floor()
        # A time that rounding put just before its grid point belongs to that point.
        left = torch.where(location - left > 1 - 1e-9, left + 1, left)
        s = (location - left).clamp(min=0.0)
        needed = math.ceil(float(location[-1]) - 1e-9)
        self.num_steps = math.ceil(needed / multiple) * multiple
        points = self.num_steps + 1
        # The last time may be the last grid point, which has nothing to its right.
        right = (left + 1).clamp(max=self.num_steps)
        rows = torch.stack([left, right, points + left, points + right], dim=1).long()
        weights = (
            (1 + 2 * s) * (1 - s) ** 2,  # value at the left grid point
            s**2 * (3 - 2 * s),  # value at the right grid point
            s * (1 - s) ** 2 * step,  # slope at the left one
            s**2 * (s - 1) * step,  # slope at the right one
        )
        self._forward = _WeightedSums(rows, torch.stack(weights, dim=1), like)
        self._transposed = self._forward.transposed(2 * points)

        grid_times = self.start + step * torch.arange(points, dtype=torch.float64)
        #: times of all K + 1 grid points, and as many ones: [2, K + 1] in dtype and on device of ``like``
        self.times_and_ones = constant_like(
            torch.stack([grid_times, torch.ones_like(grid_times)]), like
        )
        self.times = self.times_and_ones[0]

    @classmethod
    def kept(cls, times: Tensor, step: float, like: Tensor, multiple: int = 1) -> Self:
        """Return a cached grid, because copying a grid to a GPU costs as much as an iteration.

        Takes the arguments of the class, with ``times`` on the CPU.
        """
        key = times.numpy().tobytes()
        return cls._made(key, step, like.dtype, like.device, multiple)

    @classmethod
    @keep(256)  # batches differ in length, flows in step
    def _made(
        cls, times: bytes, step: float, dtype: torch.dtype, device: torch.device, multiple: int
    ) -> Self:
        numbers = torch.frombuffer(bytearray(times), dtype=torch.float64)
        return cls(numbers, step, torch.empty(0, dtype=dtype, device=device), multiple)

    def time(self, k: int) -> float:
        return self.start + k * self.step

    def interpolate(self, values: Tensor, slopes: Tensor) -> Tensor:
        """Interpolate values and slopes [K + 1, ..., C] on the grid: [N, ..., C] at the requested times."""
        return self.interpolate_joined(torch.cat([values, slopes]))

    def interpolate_joined(self, both: Tensor) -> Tensor:
        """Interpolate the grid's values followed by its slopes, [2 (K + 1), ..., C], to [N, ..., C]."""
        return self._forward(both)

    def transpose(self, grad: Tensor) -> Tensor:
        """Pull a gradient [N, ..., C] back to values and slopes, [2, K + 1, ..., C]."""
        return self._transposed(grad).unflatten(0, (2, -1))


class _WeightedSums:
    """Form weighted sums of a tensor's rows: row n of the result sums ``weights[n]`` times rows ``rows[n]``.

    Shapes: ``rows`` and ``weights`` are [N, J] on the CPU, or flat, with the ``offsets`` [N] at which
    each result begins. Terms of weight zero are left out.
    """

    def __init__(self, rows: Tensor, weights: Tensor, like: Tensor, offsets: Tensor | None = None):
        if offsets is None:
            used = weights != 0
            ends = used.sum(1).cumsum(0)
            offsets = torch.cat([ends.new_zeros(1), ends[:-1]])
            rows, weights = rows[used], weights[used]
        self._cpu = (rows, weights, offsets)
        self._like = like.new_empty(0)  # holds no graph
        self.rows = constant_like(rows, like, torch.int64)
        self.offsets = constant_like(offsets, like, torch.int64)
        self.weights = constant_like(weights, like)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the sums: [M, ..., C] -> [N, ..., C]."""
        flat = F.embedding_bag(
            self.rows,
            tensor.flatten(1),
            self.offsets,
            mode="sum",
            per_sample_weights=self.weights,
        )
        return flat.view(-1, *tensor.shape[1:])

    def transposed(self, num_rows: int) -> _WeightedSums:
        """Return the sums that carry a gradient back to a tensor of ``num_rows`` rows."""
        rows, weights, offsets = self._cpu
        terms = torch.diff(offsets, append=offsets.new_tensor([len(rows)]))
        results = torch.repeat_interleave(torch.arange(len(offsets)), terms)
        order = rows.argsort(stable=True)
        ends = torch.bincount(rows, minlength=num_rows).cumsum(0)
        begins = torch.cat([ends.new_zeros(1), ends[:-1]])
        return _WeightedSums(results[order], weights[order], self._like, begins)
