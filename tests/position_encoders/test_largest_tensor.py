"""No encoder forms a vector, or the units of a network, for each pair of tokens."""

import one_attention as one
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("side", one.SIDES)
@pytest.mark.parametrize(
    ("encoder", "options", "most"),
    [
        ("shaw", {"shaw_clip": 5}, 1),
        ("nezha", {"nezha_clip": 5}, 1),
        ("xl", {}, 2),
        ("tener", {"tener_key_term": True}, 1),
        ("fire", {"fire_threshold": 4}, 2),
    ],
)
def test_the_largest_tensor_is_no_larger_than_the_logits(encoder, options, most, side):
    stack, x = one.stack_of(side, encoder, **options), one.stream(length=60)
    with Largest() as largest:
        one.attended(stack, x)[0].sum().backward()
    of_logits = one.SENTENCES * 4 * 60 * 60
    assert of_logits <= largest.elements <= most * of_logits
