"""Keep products of float32 exact: TensorFloat-32 has 10 bits, too few for an iteration to 1e-5."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products() -> Iterator[None]:
    """Switch off autocast, and TF32 on GPUs, whatever ``torch.set_float32_matmul_precision`` was set to."""
    matmul = torch.backends.cuda.matmul
    # Newer versions of torch refuse to read one setting after the other was written.
    name, exact = (
        ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    )
    before = getattr(matmul, name)
    setattr(matmul, name, exact)
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        setattr(matmul, name, before)
