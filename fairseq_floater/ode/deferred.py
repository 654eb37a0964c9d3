"""Checks of values on a GPU that do not stop its queue, and constants that get there without one.

Reading a number from a GPU makes the host wait until all work before it is done, and so does an ordinary
copy to it. A training step that adds neither runs ahead of the GPU as fairseq's own does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class DeferredChecks:
    """Judges numbers: at once on a CPU; on a GPU when they have arrived, asked by :meth:`run`.

    A judge may raise. On a GPU that is one update late, which is why what a bad number would spoil
    has to be held back on the device.
    """

    def __init__(self) -> None:
        self._under_way: list[tuple[Tensor, Any, Callable[[float], None]]] = []

    def add(self, value: Tensor, judge: Callable[[float], None]) -> None:
        """Have ``judge`` called with the number ``value`` []."""
        if not value.is_cuda:
            judge(float(value.detach()))
            return
        copy = torch.empty((), dtype=value.dtype, pin_memory=True)
        copy.copy_(value.detach(), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._under_way.append((copy, arrived, judge))

    def run(self) -> None:
        """Judge what has arrived since."""
        under_way, self._under_way = self._under_way, []
        for value, arrived, judge in under_way:
            if arrived.query():
                judge(float(value))
            else:
                self._under_way.append((value, arrived, judge))

    def __deepcopy__(self, memo: dict[int, Any]) -> DeferredChecks:
        return DeferredChecks()  # what is under way concerns the original


def constant_like(values: Tensor, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``values`` of the CPU on the device of ``like``, in its dtype or ``dtype``, without waiting."""
    values = values.to(like.dtype if dtype is None else dtype)
    if like.is_cuda:
        return values.pin_memory().to(like.device, non_blocking=True)
    return values.to(like.device)
