"""Cache tensors that many solves share: grids, quadratures, times."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import torch

T = TypeVar("T")


def keep(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Cache the last ``most`` results of a function of hashable arguments.

    Results are made outside of ``torch.inference_mode``, because training may use what a translation
    cached and no backward pass takes an inference tensor.
    """

    def decorate(make: Callable[..., T]) -> Callable[..., T]:
        return lru_cache(maxsize=most)(torch.inference_mode(False)(make))

    return decorate
