"""Sandwich beside the products of two sinusoids, written out with numpy."""

import numpy as np
import pytest
import torch
from helpers import difference, parts, sentence, visible
from one_attention import (
    LENGTH,
    SIDES,
    bias,
    stack_of,
    tokens,
)

from fairseq_floater.position_encoders.in_attention import HIDING_BIAS

every_side = pytest.mark.parametrize("side", SIDES)
WIDTH = 128  # of the sinusoid, in the paper


def products(one, other, heads=4):
    """The products of the sinusoids at two sets of places, divided by 8 h / H for h = 1 .. H: [H, T, S]."""
    frequencies = 10_000.0 ** (-2 * np.arange(WIDTH // 2) / WIDTH)

    def sinusoid(places):
        angles = np.asarray(places, dtype=np.float64)[:, None] * frequencies
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    ratios = 8 * np.arange(1, heads + 1) / heads
    return torch.from_numpy(sinusoid(one) @ sinusoid(other).T / ratios[:, None, None]).float()


def expected_biases(side, direction, places):
    """[H, T, T] for ``places`` in tokens; what a decoder hides is that of ``mirror``."""
    plain = products(places, places)
    if side == "decoder" or direction == "mirror":
        return plain
    behind = torch.from_numpy(places[:, None] < places)
    if direction == "offset":  # half a token nearer
        nearer = torch.stack([products([at], places - 0.5)[:, 0] for at in places], dim=1)
        return torch.where(behind, nearer, plain)
    odd = (torch.arange(4) % 2 == 1)[:, None, None]
    before = torch.from_numpy(places[:, None] > places)
    return plain.masked_fill(torch.where(odd, before, behind), HIDING_BIAS)


@torch.no_grad()
def test_far_biases_are_exact():
    """Angles in float32 are off by 0.004 at 100,000; the first frequency is 1 radian a token."""
    found = stack_of("decoder", "sandwich").positions.biases(torch.tensor([0.0, 99_999.0]))
    expected = products([0, 99_999], [0])[:, :, 0].T
    assert difference(found, expected) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize(("heads", "width"), [(8, 64), (6, 48), (1, 64)])
def test_later_heads_see_further(heads, width):
    found = bias(stack_of("decoder", "sandwich", heads, width), tokens(40))[0]
    assert difference(found[:, 39], products(range(40), range(40), heads)[:, 39]) <= 2e-5
    drops = found[:, 39, 39] - found[:, 39, 0]
    assert torch.equal(drops.sort(descending=True).values, drops)
    assert float(drops.min()) > 2


@pytest.mark.parametrize(
    ("direction", "is_blind"), [("mirror", True), ("offset", False), ("heads", False)]
)
def test_mirror_alone_gives_a_reversed_sentence_the_reversed_encoding(direction, is_blind):
    model = visible("sandwich", target="attention", bias_direction=direction)
    source = sentence(12)
    with torch.no_grad():
        forward, backward = (
            model.encoder(words, src_lengths=torch.tensor([12]))["encoder_out"][0]
            for words in (source, source.flip(1))
        )
    change = difference(forward, backward.flip(0))
    assert change <= 1e-5 if is_blind else change > 0.01


@every_side
@torch.no_grad()
def test_where_the_base_stays_a_gate_scales_the_bias(side):
    gated = stack_of(side, "sandwich", position_base="keep")
    open_ = stack_of(side, "sandwich")
    gated.positions.gate.weight.fill_(0.3)
    assert difference(bias(gated), 0.3 * bias(open_)) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("gate", [0.3, 0.0, -0.3])
def test_a_gate_shows_no_head_what_its_direction_hides(gate):
    stack = stack_of("encoder", "sandwich", position_base="keep", bias_direction="heads")
    stack.positions.gate.weight.fill_(gate)
    ungated = expected_biases("encoder", "heads", np.arange(LENGTH))
    hidden = ungated <= HIDING_BIAS
    expected = (gate * ungated).masked_fill(hidden, HIDING_BIAS)
    assert hidden.any() and difference(bias(stack), expected[None]) <= 1e-3
    at, blocks = tokens().at(True), parts(stack, "positions")
    half = stack.positions.logit_bias(at, blocks, torch.bfloat16)[0].float()
    assert half[hidden].max() < HIDING_BIAS / 2 and half[~hidden].min() > -100
