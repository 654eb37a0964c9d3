"""Keep tensors that many solves share: grids, quadratures, times."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def keep(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a function of hashable arguments: its last ``most`` results are kept.

    They are made outside of ``torch.inference_mode``: no backward pass takes a tensor of that mode, and a
    later training may meet what a translation has made.
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
