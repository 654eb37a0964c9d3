"""NEZHA's sinusoids of distances, against the equations."""

import math

import pytest
import torch
from distance_terms import HEADS, LENGTH, WIDTH, attended, logits, slots, stack_of
from helpers import build, difference, log_probs, parts, source_batch, target_batch, visible
from shaws_form import stretched, written_out

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.sinusoidal import interleaved_sinusoid

every_stack = pytest.mark.parametrize("side", ["encoder", "decoder"])
HEAD_DIM = WIDTH // HEADS


def sinusoid(place):
    """The paper's equation, channel by channel."""
    angles = [place * 10000 ** (-2 * c / HEAD_DIM) for c in range(HEAD_DIM // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)])


def of_pairs(clip, scale):
    """The vectors of all pairs of tokens, ``scale`` apart, clipped: [T, S, D]."""
    limit = clip or math.inf
    clipped = [
        [max(-limit, min(limit, scale * (j - i))) for j in range(LENGTH)] for i in range(LENGTH)
    ]
    return torch.stack([torch.stack([sinusoid(place) for place in line]) for line in clipped])


@every_stack
@pytest.mark.parametrize("clip", [5, 0, 64])
@torch.no_grad()
def test_logits_and_output_are_those_of_the_paper(side, clip):
    stack, x = stack_of(side, "nezha", nezha_clip=clip)
    vectors = of_pairs(clip, 1)
    scores, output = written_out(stack, x, vectors, vectors)
    torch.testing.assert_close(logits(stack, x), scores, rtol=0, atol=1e-5)
    assert difference(attended(stack, x)[0], output) <= 1e-5


@every_stack
@pytest.mark.parametrize("clip", [5, 0])
@torch.no_grad()
def test_stretched_distances_are_real_numbers(side, clip):
    stack, x = stack_of(side, "nezha", nezha_clip=clip)
    vectors = of_pairs(clip, 3 / 4)
    scores, output = written_out(stack, x, vectors, vectors)
    at = stretched(LENGTH, rows_per_token=4)
    stack.train().dropout_module.p = 0.0
    torch.testing.assert_close(logits(stack, x, at), scores, rtol=0, atol=1e-5)
    assert difference(attended(stack, x, at)[0], output) <= 1e-5


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
    far = stack_of("decoder", "nezha", nezha_clip=0)[0].positions.compute(5000, [])[-1].flatten()
    assert difference(far, sinusoid(-4_999).flatten()) < 1e-6


def test_nothing_is_learned():
    assert sum(added_parameters("floater_transformer", "nezha", "all").values()) == 0


@every_stack
@torch.no_grad()
def test_a_clip_bounds_the_table_and_the_distances(side):
    for clip, rows in ((5, 6), (0, 300)):
        stack, x = stack_of(side, "nezha", nezha_clip=clip)
        encoder = stack.positions
        _, keys, values = encoder.prepare(slots(300), parts(stack, "positions"), x.dtype)[0]
        assert keys is values
        assert len(keys) == rows * (1 if side == "decoder" else 2)


def test_the_clip_changes_the_model():
    batch = source_batch(), target_batch()
    usual, none, short = (
        visible("nezha", target="attention", nezha_clip=clip) for clip in (64, 0, 3)
    )
    found = [log_probs(model, *batch) for model in (usual, none, short)]
    assert difference(found[0], found[1]) <= 1e-6  # no sentence is that long
    assert difference(found[0], found[2]) > 1e-3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"nezha_clip": -1}, "`--nezha-clip` must be at least 0, but is -1 instead; with 0 no"),
        ({"nezha_clip": "far"}, "`--nezha-clip` must be of type int, but is 'far'"),
        (
            {"decoder_embed_dim": 60, "decoder_output_dim": 60, "decoder_attention_heads": 4},
            "even number of channels a head, but a head has 15; .* target side",
        ),
    ],
)
def test_bad_options_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        build("nezha", target="attention", **bad)
