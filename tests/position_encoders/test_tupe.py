"""TUPE's logits beside sums written out by matrices: no package has them to compare with."""

import pytest
import torch
from forcing import assert_padding_moves_nothing, assert_steps_equal_one_pass
from helpers import (
    PAD,
    TOLERANCE,
    build,
    difference,
    log_probs,
    loss_of,
    parts,
    sentence,
    shifted,
    signals,
    source_batch,
    target_batch,
    visible,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.position_encoders.transforms import At, Tokens

SIDES = ["encoder", "decoder"]
HEADS, D = 2, 32  # of the tiny model
LEARNED = {"tupe_positions": "learned", "max_source_positions": 16, "max_target_positions": 16}
every_form = pytest.mark.parametrize("options", [{}, LEARNED], ids=["sinusoid", "learned"])


def tupe(**options):
    return visible("tupe", target="attention", **options)


def t5_bucket(distance, causal, buckets=32, furthest=128):
    """Raffel's rule, written for one distance."""
    count = buckets if causal else buckets // 2
    first = 0 if causal or distance >= 0 else count
    steps = (
        torch.tensor(abs(distance) / (count // 2)).log()
        / torch.tensor(furthest / (count // 2)).log()
    )
    wide = count // 2 + int(steps * (count - count // 2)) if abs(distance) >= count // 2 else 0
    return first + (abs(distance) if abs(distance) < count // 2 else min(wide, count - 1))


def expected_bias(encoder, p, causal):
    """Both projections of ``p`` [N, C] multiplied, and T5's bias: [H, N, N]."""
    normed = (p - p.mean(1, keepdim=True)) / (p.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    normed = normed * encoder.norm.weight + encoder.norm.bias
    q = normed @ encoder.query_projection.weight.T + encoder.query_projection.bias
    k = normed @ encoder.key_projection.weight.T + encoder.key_projection.bias
    found = torch.zeros(HEADS, len(p), len(p))
    for h in range(HEADS):
        own = slice(h * D, (h + 1) * D)
        found[h] = q[:, own] @ k[:, own].T / (2 * D) ** 0.5
        for i in range(len(p)):
            for j in range(len(p)):
                found[h, i, j] += encoder.weight[t5_bucket(i - j, causal), h]
    return found


@torch.no_grad()
@pytest.mark.parametrize("side", SIDES)
@every_form
def test_the_scores_are_the_papers_sums(side, options):
    length = 14
    model = tupe(**options)
    stack = getattr(model, side)
    attention, encoder = stack.layers[1].self_attn, stack.positions
    attention.out_proj = torch.nn.Identity()
    for projection in (encoder.query_projection, encoder.key_projection):
        projection.weight.mul_(0.2)  # no weight near 0 or 1
    p = encoder.positions[:length] if options else sinusoid_rows(length, 64, PAD)
    causal = side == "decoder"
    allowed = torch.ones(length, length, dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    at = Tokens.read(torch.zeros(1, length, dtype=torch.bool)).at(encoder.relative)
    bias = encoder.logit_bias(at, parts(stack, "positions"), torch.float32)
    position = expected_bias(encoder, p, causal).masked_fill(~allowed, float("-inf"))
    assert difference(bias[0][:, allowed], position[:, allowed]) <= 1e-5

    x = torch.randn(length, 3, 64, generator=torch.Generator().manual_seed(5))
    mask = bias.masked_fill(~allowed, float("-inf"))
    hooks = {"hooks": stack.layers[1].positions, "attn_mask": mask}
    output, weights = attention(x, x, x, need_head_weights=True, **hooks)
    fused, _ = attention(x, x, x, need_weights=False, **hooks)
    q, k, v = (
        project(x).view(length, 3, HEADS, D).permute(1, 2, 0, 3)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / (2 * D) ** 0.5 + position
    expected = torch.einsum("bhij,bhjd->ibhd", scores.softmax(-1), v).flatten(2)
    assert difference(weights.transpose(0, 1), scores.softmax(-1)) <= 1e-5
    assert difference(output, expected) <= 1e-5
    assert difference(fused, expected) <= 1e-5


@pytest.mark.parametrize("side", SIDES)
def test_stretched_positions_are_those_of_the_stretched_places(side):
    """In a factor of 2 token i stands where token 2i stood, and a quarter of a token is a row."""
    stack = getattr(tupe(), side)
    far, near = 2 * torch.arange(6)[None], 8 * torch.arange(6)[None]
    blocks = parts(stack, "positions")
    with torch.no_grad():
        one, other = (
            stack.positions.logit_bias(at, blocks, torch.float32)
            for at in (At(far, far, 11), At(near, near, 42, 4))
        )
    allowed = torch.ones(6, 6, dtype=torch.bool)
    if side == "decoder":
        allowed = allowed.tril()
    assert difference(one[0][:, allowed], other[0][:, allowed]) <= 1e-4


def test_training_is_stretched_and_a_factor_of_one_changes_nothing():
    batch = source_batch(), target_batch()
    losses = []
    for text in (None, "1:1", "2:2"):
        model = tupe(dropout=0.0, position_stretch=text)
        losses.append(loss_of(model.train(), *batch).item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0] != pytest.approx(losses[2], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1_053_184),
        ({"t5_buckets": 64}, 1_053_184 + 2 * 32 * 8),
        ({"tupe_positions": "learned"}, 1_053_184 + 2 * 1024 * 512),
    ],
)
def test_parameters(options, count):
    assert sum(added_parameters("floater_transformer", "tupe", "all", **options).values()) == count


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_learned_positions_keep_the_contract(left):
    model = tupe(**LEARNED)
    batch = source_batch(left), target_batch()
    assert_steps_equal_one_pass(model, *batch)
    assert_padding_moves_nothing(model, *batch)
    loss_of(model.train(), *batch).backward()
    for _, _, encoder in signals(model):
        used = encoder.positions.grad.abs().sum(1) > 0
        assert used.tolist() == [i < (12 if encoder.spec.causal else 11) for i in range(16)]


def test_learned_positions_end_and_the_sinusoid_does_not():
    assert tupe().max_positions() == (UNLIMITED_POSITIONS, UNLIMITED_POSITIONS)
    model = tupe(**LEARNED)
    assert model.max_positions() == (16, 16)
    source, target_in = sentence(16), shifted(sentence(16))
    expected = log_probs(model, source, target_in)
    wide = [torch.nn.functional.pad(x, (4, 0), value=PAD) for x in (source, target_in)]
    assert difference(log_probs(model, *wide)[:, 4:], expected) <= TOLERANCE
    words = "source sequence of 17 tokens.*16 positions.*--max-source-positions"
    with pytest.raises(ValueError, match=words):
        log_probs(model, sentence(17), target_in)


def test_the_bias_is_computed_once_for_all_blocks(monkeypatch):
    model = tupe()
    calls = []
    for _, _, encoder in signals(model):
        logit_bias = encoder.logit_bias
        monkeypatch.setattr(
            encoder, "logit_bias", lambda *a, f=logit_bias: calls.append(f(*a)) or calls[-1]
        )
    log_probs(model, source_batch(), target_batch())
    assert [bias.shape for bias in calls] == [(3, HEADS, 11, 11), (3, HEADS, 12, 12)]


def test_every_option_changes_the_scores():
    batch = sentence(30), shifted(sentence(30, seed=1))
    plain = log_probs(tupe(), *batch)
    for options in (
        {"t5_buckets": 8},
        {"t5_max_distance": 20},
        LEARNED | {"max_source_positions": 40, "max_target_positions": 40},
    ):
        assert difference(log_probs(tupe(**options), *batch), plain) > 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"tupe_positions": "rotary"},
            "`--tupe-positions` must be one of sinusoid, learned, but is 'rotary'",
        ),
        ({"t5_buckets": 6}, "`--t5-buckets` must be a multiple of 4, but is 6"),
        ({"t5_max_distance": 16}, "`--t5-max-distance` must be more than 16"),
        (
            {"tupe_positions": "learned", "position_stretch": "0.5:2"},
            r"`--position-stretch` needs positions between two tokens .*tupe \(tupe-positions learned",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        build("tupe", target="attention", **options)
    build("tupe", target="attention", position_stretch="0.5:2")
