"""ALiBi's slopes against x-transformers' and Bloom's, and the direction of its biases."""

import helpers as h
import pytest
import torch
from oracles import transformers_module

from fairseq_floater.position_encoders.alibi import slopes


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_those_of_x_transformers_and_bloom(heads):
    ours = torch.tensor(slopes(heads))
    package = pytest.importorskip("x_transformers.x_transformers")
    theirs = package.AlibiPositionalBias(heads=heads).slopes.flatten()
    assert h.difference(ours, theirs) <= 1e-7
    of_bloom = transformers_module("bloom.modeling_bloom").build_alibi_tensor
    one_apart = of_bloom(torch.ones(1, 2), heads, torch.float32)[:, 0]
    assert h.difference(ours, one_apart[:, 1] - one_apart[:, 0]) <= 1e-7
