"""Cache tensors that many solves share: grids, quadratures, times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def keep(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Cache the last ``most`` results of a function of hashable arguments.

    Results are made outside of ``torch.inference_mode``, because training may use what a translation
    cached and no backward pass takes an inference tensor.
    """

    def decorate(make: Callable[..., T]) -> Callable[..., T]:
        @lru_cache(maxsize=most)
        def made(*args: Hashable) -> T:
            with torch.inference_mode(False):
                return make(*args)

        @wraps(make)
        def find(*args: Any) -> T:
            return made(*args)

        return find

    return decorate
