"""What `--device` moves, and what it leaves where it is."""

import functools

import torch
from on_device import TensorsOfTests

from fairseq_floater.ode.clock import Clock


def test_only_tensors_of_tests_move_and_their_numbers_are_the_same():
    generator = functools.partial(torch.Generator().manual_seed, 3)
    cpu = torch.randn(4, generator=generator())
    with TensorsOfTests("meta"):
        made = [
            torch.ones(2),
            torch.arange(3),
            torch.tensor([1]),
            torch.randn(4, generator=generator()),
        ]
        assert {tensor.device.type for tensor in made} == {"meta"}
        learns = torch.zeros(2, requires_grad=True)
        assert learns.is_leaf
        assert learns.requires_grad
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert Clock(0.1).of_tokens(3).device.type == "cpu"  # the package's own
        assert torch.nn.Linear(2, 3).weight.device.type == "cpu"
    with TensorsOfTests("cpu"):
        assert torch.equal(torch.randn(4, generator=generator()), cpu)
