"""T5's buckets and biases beside Hugging Face's."""

import helpers as h
import one_attention as one
import pytest
import torch
from oracles import transformers_module

SMALL = {"t5_buckets": 8, "t5_max_distance": 9}  # reached within LENGTH


@one.every_side
@pytest.mark.parametrize("options", [{}, SMALL], ids=["default", "small"])
@torch.no_grad()
def test_the_bias_is_hugging_faces(side, options):
    t5 = transformers_module("t5.modeling_t5")
    stack = one.stack_of(side, "t5", **options)
    config = t5.T5Config(
        num_heads=4,
        is_decoder=side == "decoder",
        relative_attention_num_buckets=stack.positions.spec.options["t5_buckets"],
        relative_attention_max_distance=stack.positions.spec.options["t5_max_distance"],
    )
    oracle = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    oracle.relative_attention_bias.weight.copy_(stack.positions.weight)
    seen = one.causal_mask(stack, 200) == 0
    found, expected = one.bias(stack, one.tokens(200)), oracle.compute_bias(200, 200)
    assert h.difference(found[..., seen], expected[..., seen]) <= 1e-6
