"""RoPE beside Hugging Face's RoFormer."""

import helpers as h
import one_attention as one
import pytest
import torch
from oracles import transformers_module

from fairseq_floater.position_encoders.rope import turn_pairs

HEAD = 16


@one.every_side
@pytest.mark.parametrize("values", [False, True], ids=["q-k", "q-k-v"])
@torch.no_grad()
def test_attention_is_roformers(side, values):
    roformer = transformers_module("roformer.modeling_roformer")
    stack, x = one.stack_of(side, "rope", rope_values=values), one.stream()
    ours, width = stack.layers[0].self_attn, x.size(-1)
    config = roformer.RoFormerConfig(
        hidden_size=width,
        num_attention_heads=4,
        attention_probs_dropout_prob=0.0,
        rotary_value=values,
    )
    oracle = roformer.RoFormerSelfAttention(config).eval()
    for theirs, projection in (
        (oracle.query, ours.q_proj),
        (oracle.key, ours.k_proj),
        (oracle.value, ours.v_proj),
    ):
        theirs.load_state_dict(projection.state_dict())
    table = roformer.RoFormerSinusoidalPositionalEmbedding(one.LENGTH, HEAD)
    table.weight.copy_(table.create_weight())
    read, probabilities = oracle(
        x.transpose(0, 1), one.causal_mask(stack), table((2, one.LENGTH))[None, None]
    )
    output, weights = one.attended(stack, x, need_head_weights=True)
    assert h.difference(weights.transpose(0, 1), probabilities) <= 1e-5
    assert h.difference(output, ours.out_proj(read).transpose(0, 1)) <= 1e-5


@one.every_side
def test_far_angles_do_not_collide(side):
    """Angles in float32 are off by 0.004 at 100,000; the first frequency is 1 radian a token."""
    stack = one.stack_of(side, "rope")
    with torch.no_grad():
        rows = stack.positions(100_001, h.parts(stack, "positions"), torch.float32)
    exact = 100_000 * torch.tensor(10_000.0).double() ** (-torch.arange(8).double() / 8)
    expected = torch.stack([exact.cos(), exact.sin()]).float()
    assert h.difference(rows[100_000], expected) <= 1e-6


def test_pairs_that_cannot_be_read_as_complex_numbers_turn_alike():
    x = torch.randn(2, 3, 5, 9)[..., :8]  # rows start at odd offsets in memory
    angles = torch.randn(5, 4)
    turned = turn_pairs(x, angles.cos(), angles.sin())
    expected = turn_pairs(x.contiguous(), angles.cos(), angles.sin())
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)
