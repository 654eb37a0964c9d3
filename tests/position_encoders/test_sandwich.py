"""Sandwich far away, and its gate over fairseq's base."""

import helpers as h
import one_attention as one
import pytest
import torch

from fairseq_floater.position_encoders.in_attention import HIDING_BIAS


@torch.no_grad()
def test_far_biases_are_exact():
    """Angles in float32 are off by 0.004 at 100,000; the first frequency is 1 radian a token."""
    found = one.stack_of("decoder", "sandwich").positions.biases(torch.tensor([99_999.0]))
    w = 10_000.0 ** (-torch.arange(64).double() / 64)
    expected = (99_999 * w).cos().sum() * 4 / (8 * torch.arange(1, 5))
    assert h.difference(found[0], expected.float()) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("gate", [0.3, 0.0, -0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_shows_no_head_what_its_direction_hides(gate, dtype):
    stack = one.stack_of("encoder", "sandwich", position_base="keep", bias_direction="heads")
    stack.positions.gate.weight.fill_(gate)
    bias = stack.positions.logit_bias(one.tokens().at(True), [], dtype)[0].float()
    d = torch.arange(one.LENGTH)[:, None] - torch.arange(one.LENGTH)
    hidden = torch.stack([d > 0 if head % 2 else d < 0 for head in range(4)])
    assert bias[hidden].max() < HIDING_BIAS / 2 and bias[~hidden].abs().max() < 100
