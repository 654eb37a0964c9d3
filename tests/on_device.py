"""Run tests on another device: `pytest --device cuda`.

Models that helpers build and tensors that test files make go there. What the package makes stays where the
package makes it, so that a tensor on the wrong device fails as it would for a user. Not a test file.
"""

import sys
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

#: set by conftest.py before it imports any test
DEVICE = torch.device("cpu")
TESTS = str(Path(__file__).resolve().parent)
FACTORIES = frozenset(
    getattr(torch, name)
    for name in (
        *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint"),
        *("randn", "randperm", "tensor", "zeros"),
    )
)


class TensorsOfTests(TorchFunctionMode):
    """Make the tensors of test files on the CPU, for equal numbers everywhere; move them to ``device``."""

    def __init__(self, device):
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        caller = sys._getframe(1).f_code.co_filename
        if func not in FACTORIES or kwargs.get("device") is not None or TESTS not in caller:
            return func(*args, **kwargs)
        learns = kwargs.pop("requires_grad", False)
        return func(*args, **kwargs).to(self.device).requires_grad_(learns)


def use(device):
    """Use ``device`` in this process; torch raises an error if there is none."""
    global DEVICE
    DEVICE = torch.device(device)
    torch.empty(0, device=DEVICE)
    # The tolerance of 2e-5 needs float32; TF32 has ten bits.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    TensorsOfTests(DEVICE).__enter__()
