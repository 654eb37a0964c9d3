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
        times: [N] float64 on the CPU, increasing.
        step: grid spacing in units of time.
        like: gives dtype and device of the interpolation weights.
        multiple: the number of steps is rounded up to a multiple of this.
    """

    def __init__(self, times: Tensor, step: float, like: Tensor, multiple: int = 1):
        self.start = float(times[0])
        self.step = step
        # Positions on the grid in float64: in float32, t = 1000 is known to 6e-5 only.
        location = (times - self.start) / step
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
        of_neighbours = (
            (1 + 2 * s) * (1 - s) ** 2,  # value at the left grid point
            s**2 * (3 - 2 * s),  # value at the right grid point
            s * (1 - s) ** 2 * step,  # slope at the left one
            s**2 * (s - 1) * step,  # slope at the right one
        )
        weights = torch.stack(of_neighbours, dim=1)
        used = weights != 0
        results = torch.arange(len(rows))[:, None].expand_as(rows)[used]
        rows, weights = rows[used], weights[used]
        #: interpolates the grid's values followed by its slopes, [2 (K + 1), ..., C], to [N, ..., C]
        self.interpolate_joined = _WeightedSums(results, rows, weights, len(left), like)
        self._transposed = _WeightedSums(rows, results, weights, 2 * points, like)

        grid_times = self.start + step * torch.arange(points, dtype=torch.float64)
        #: times of all K + 1 grid points, and as many ones: [2, K + 1] in dtype and on device of ``like``
        self.times_and_ones = constant_like(
            torch.stack([grid_times, torch.ones_like(grid_times)]), like
        )
        self.times = self.times_and_ones[0]

    @classmethod
    def kept(cls, times: Tensor, step: float, like: Tensor, multiple: int = 1) -> Self:
        """Return a cached grid, because copying a grid to a GPU costs as much as an iteration."""
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

    def transpose(self, grad: Tensor) -> Tensor:
        """Pull a gradient [N, ..., C] back to values and slopes, [2, K + 1, ..., C]."""
        return self._transposed(grad).unflatten(0, (2, -1))


class _WeightedSums:
    """Form weighted sums of a tensor's rows: result n is the sum of the terms m with ``results[m]`` = n.

    Term m is ``weights[m]`` times row ``rows[m]``. The sums with ``rows`` and ``results`` exchanged carry a
    gradient back.

    Shapes: ``results``, ``rows`` and ``weights`` are [M] on the CPU; there are N results.
    """

    def __init__(self, results: Tensor, rows: Tensor, weights: Tensor, count: int, like: Tensor):
        order = results.argsort(stable=True)
        ends = torch.bincount(results, minlength=count).cumsum(0)
        begins = torch.cat([ends.new_zeros(1), ends[:-1]])
        self.rows = constant_like(rows[order], like, torch.int64)
        self.offsets = constant_like(begins, like, torch.int64)
        self.weights = constant_like(weights[order], like)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the sums: [R, ..., C] -> [N, ..., C]."""
        flat = F.embedding_bag(
            self.rows,
            tensor.flatten(1),
            self.offsets,
            mode="sum",
            per_sample_weights=self.weights,
        )
        return flat.view(-1, *tensor.shape[1:])
