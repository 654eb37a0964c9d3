"""NEZHA's sinusoids of distances, against the equations."""

import math

import pytest
import torch
from distance_terms import HEADS, WIDTH, slots, stack_of
from helpers import difference, parts

from fairseq_floater.position_encoders.sinusoidal import interleaved_sinusoid
from fairseq_floater.position_encoders.transforms import Places

every_stack = pytest.mark.parametrize("side", ["encoder", "decoder"])
HEAD_DIM = WIDTH // HEADS


def sinusoid(place):
    """The paper's equation, channel by channel."""
    angles = [place * 10000 ** (-2 * c / HEAD_DIM) for c in range(HEAD_DIM // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)])


def test_the_authors_sinusoid_is_ours_turned():
    """Theirs is that of clip(j - i) + k: a turn by k w in each pair, the same for all distances."""
    clip = 6
    ours, theirs = (
        torch.stack([sinusoid(place) for place in range(first, first + 2 * clip + 1)])
        for first in (-clip, 0)
    )
    pairs = ours.unflatten(1, (-1, 2))
    sin, cos = sinusoid(clip).unflatten(0, (-1, 2)).unbind(-1)
    turned = torch.stack(
        [
            pairs[..., 0] * cos + pairs[..., 1] * sin,
            pairs[..., 1] * cos - pairs[..., 0] * sin,
        ],
        dim=-1,
    )
    assert difference(turned.flatten(1), theirs) < 1e-6
    places = torch.arange(-clip, clip + 1, dtype=torch.float64)
    assert difference(interleaved_sinusoid(places, HEAD_DIM), ours) < 1e-6


def test_far_distances_are_exact():
    row = interleaved_sinusoid(torch.tensor([-99_999.0], dtype=torch.float64), HEAD_DIM)
    assert difference(row[0], sinusoid(-99_999)) < 1e-6
    # A key before the query stands at j - i < 0; half precision has no number 4,999.
    far = (
        stack_of("decoder", "nezha", nezha_clip=0)[0].positions.rows(Places(5000), [])[-1].flatten()
    )
    assert difference(far, sinusoid(-4_999).flatten()) < 1e-6


@every_stack
@torch.no_grad()
def test_a_clip_bounds_the_table_and_the_distances(side):
    for clip, rows in ((5, 6), (0, 300)):
        stack, x = stack_of(side, "nezha", nezha_clip=clip)
        encoder = stack.positions
        _, keys, values = encoder.prepare(slots(300), parts(stack, "positions"), x.dtype)[0]
        assert keys is values
        assert len(keys) == rows * (1 if side == "decoder" else 2)
