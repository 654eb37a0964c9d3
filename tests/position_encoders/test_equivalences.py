"""Encodings from other papers that are special cases of encoders here."""

import helpers as h
import one_attention as one
import pytest
import torch
import torch.nn.functional as F

from fairseq_floater.position_encoders.rotation_flow import DELTA
from fairseq_floater.position_encoders.transforms import Places

WIDTH, HEADS = 16, 4


def random_skew():
    """A - A^T (Kogkalidis et al. 2024), its planes of two columns each, and their frequencies."""
    a = 0.3 * torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(1j * (a - a.T))  # vectors x + iy: S x = w y, S y = -w x
    planes = vectors[:, WIDTH // 2 :] * 2**0.5
    return a - a.T, torch.view_as_real(planes).flatten(1), values[WIDTH // 2 :]


def rank_two():
    """a b^T - b a^T (GRAPE, Zhang et al. 2025), its planes and frequencies; only one plane rotates."""
    a, b = torch.randn(2, WIDTH, dtype=torch.float64) / 4
    rest = torch.randn(WIDTH, WIDTH - 2, dtype=torch.float64)
    planes, r = torch.linalg.qr(torch.cat([torch.stack([a, b], dim=1), rest], dim=1))
    return (
        torch.outer(a, b) - torch.outer(b, a),
        planes,
        -(r[0, 0] * r[1, 1]) * (torch.arange(WIDTH // 2) == 0),
    )


@pytest.mark.parametrize("generator", [random_skew, rank_two])
@torch.no_grad()
def test_powers_of_a_rotation_are_rope_whose_queries_and_keys_are_rotated(generator):
    """Logits are q_i exp((i - j) S_h) k_j; heads differ in S_h but not in its frequencies."""
    stack, x = one.stack_of("encoder", "rope", heads=HEADS, rope_learned=True), one.stream()
    skew, planes, frequencies = generator()
    turns = torch.linalg.qr(torch.randn(HEADS, WIDTH, WIDTH, dtype=torch.float64))[0]
    distances = torch.arange(len(x))[:, None] - torch.arange(len(x))
    powers = torch.matrix_exp(distances[..., None, None] * (turns @ skew @ turns.mT)[:, None, None])
    q, k, v = (part.double() for part in one.heads_of(stack, x))
    expected = torch.einsum("bhid,hijde,bhje->bhij", q, powers, k) / WIDTH**0.5
    stack.positions.frequencies.copy_(-frequencies)
    for projection in (stack.layers[0].self_attn.q_proj, stack.layers[0].self_attn.k_proj):
        for parameter in (projection.weight, projection.bias):
            of_heads = parameter.view(HEADS, WIDTH, -1).double()
            parameter.copy_(((turns @ planes).mT @ of_heads).reshape(parameter.shape))
    assert one.logits_differ_by(stack, one.logits(stack, x), expected.float()) <= 1e-4


@torch.no_grad()
def test_cable_is_forgetting_with_a_bias_of_zero():
    """Veisi et al. 2025 add b_i - b_j to the logits; b_i is the sum of -softplus(w x_l) for l <= i."""
    stack, x = one.stack_of("decoder", "forget"), one.stream()
    forget = stack.layers[0].positions.forget
    forget.bias.zero_()
    sums = -F.softplus(x @ -forget.weight.T).cumsum(0).permute(1, 2, 0)
    expected, _ = one.written_out(
        stack, *one.heads_of(stack, x), sums[..., None] - sums[:, :, None]
    )
    assert one.logits_differ_by(stack, one.logits(stack, x), expected) <= h.TOLERANCE


@torch.no_grad()
def test_a_rotation_flow_is_grapes_action_on_its_first_row():
    """For L of rank two and norm s, exp(n L) = 1 + sin(n s) / s L + (1 - cos(n s)) / s^2 L^2."""
    model = h.visible("rotation_flow")
    (_, _, flow), parts = h.signals(model)[0], h.parts(model.encoder, "positions")
    a, b = torch.linalg.qr(torch.randn(flow.spec.dim, 2))[0].T
    s, action = 0.7, 0.7 * (torch.outer(a, b) - torch.outer(b, a))
    flow.generator.copy_(action.T / (2 * DELTA))  # A - A^T acts on rows from the right
    rows = flow.rows(Places(40), parts)[:, 0, 0]
    n = torch.arange(40.0)[:, None]
    once, twice = action @ rows[0], action @ action @ rows[0]
    expected = rows[0] + (n * s).sin() / s * once + (1 - (n * s).cos()) / s**2 * twice
    assert h.difference(rows, expected) <= 1e-4
