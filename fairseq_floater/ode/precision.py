"""Keep products of float32 exact: TensorFloat-32 has 10 bits, too few for an iteration to 1e-5."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exact_products() -> Iterator[None]:
    """Switch off autocast, TF32 on GPUs, and TF32 and bfloat16 on CPUs.

    ``torch.set_float32_matmul_precision`` may have allowed them for products of float32.
    """
    matmul, on_cpu = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    # Newer versions of torch refuse to read one setting after the other was written.
    name, exact = (
        ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    )
    settings: list[Any] = [s for s in (matmul, on_cpu) if hasattr(s, name)]
    before = [getattr(setting, name) for setting in settings]
    for setting in settings:
        setattr(setting, name, exact)
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for setting, value in zip(settings, before):
            setattr(setting, name, value)
