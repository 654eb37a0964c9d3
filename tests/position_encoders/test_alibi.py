"""ALiBi's slopes, biases and attention beside x-transformers', Hugging Face Bloom's and torch's."""

import pytest
import torch
from forcing import assert_steps_equal_one_pass
from helpers import (
    build,
    difference,
    log_probs,
    loss_of,
    position_parameters,
    sentence,
    source_batch,
    target_batch,
    visible,
)
from one_attention import (
    LENGTH,
    SIDES,
    attended,
    bias,
    causal_mask,
    heads_of,
    logits,
    stack_of,
    step_by_step,
    stream,
    stretched,
    tokens,
    written_out,
)
from oracles import transformers_module

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.alibi import slopes
from fairseq_floater.position_encoders.in_attention import HIDING_BIAS

DIRECTIONS = ("offset", "mirror", "heads")
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)


def x_transformers_alibi(heads=4):
    package = pytest.importorskip("x_transformers.x_transformers")
    return package.AlibiPositionalBias(heads=heads)


def directed(expected, direction, behind, before):
    """``expected`` [..., H, T, S] with what ``direction`` changes where keys stand behind or before."""
    m = torch.tensor(slopes(expected.size(-3)))[:, None, None]
    if direction == "offset":
        return expected + 0.5 * m * behind
    if direction == "mirror":
        return expected
    odd = (torch.arange(len(m)) % 2 == 1)[:, None, None]
    return expected.masked_fill(torch.where(odd, before, behind), HIDING_BIAS)


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_those_of_x_transformers_and_bloom(heads):
    ours = torch.tensor(slopes(heads))
    assert difference(ours, x_transformers_alibi(heads).slopes.flatten()) <= 1e-7
    of_bloom = transformers_module("bloom.modeling_bloom").build_alibi_tensor
    one_apart = of_bloom(torch.ones(1, 2), heads, torch.float32)[:, 0]
    assert difference(ours, one_apart[:, 1] - one_apart[:, 0]) <= 1e-7


@pytest.mark.parametrize(("heads", "width"), [(8, 64), (6, 48), (3, 24), (1, 64)])
@every_direction
@torch.no_grad()
def test_an_encoders_biases_are_those_of_x_transformers_directed(direction, heads, width):
    stack = stack_of("encoder", "alibi", heads, width, bias_direction=direction)
    behind = torch.ones(300, 300, dtype=torch.bool).triu(1)
    expected = directed(x_transformers_alibi(heads)(300, 300), direction, behind, behind.T)
    assert difference(bias(stack, tokens(300))[0], expected) <= 1e-5


@every_direction
@torch.no_grad()
def test_a_decoders_biases_are_those_of_x_transformers_in_every_direction(direction):
    stack = stack_of("decoder", "alibi", 6, 48, bias_direction=direction)
    oracle = x_transformers_alibi(6)
    seen = torch.ones(300, 300, dtype=torch.bool).tril()
    assert difference(bias(stack, tokens(300))[0, :, seen], oracle(300, 300)[:, seen]) <= 1e-5
    for t in (0, 1, 17, 250):  # a step of decoding
        step = bias(stack, tokens(t + 1, last_only=True))
        assert difference(step[0], oracle(300, 300)[:, t : t + 1, : t + 1]) <= 1e-5


@torch.no_grad()
def test_a_decoders_attention_is_hugging_faces_bloom():
    bloom = transformers_module("bloom.modeling_bloom")
    stack, x = stack_of("decoder", "alibi"), stream()
    ours, heads, width = stack.layers[0].self_attn, 4, x.size(-1)
    config = bloom.BloomConfig(
        hidden_size=width, n_head=heads, attention_dropout=0.0, hidden_dropout=0.0
    )
    oracle = bloom.BloomAttention(config, layer_idx=0).eval()
    oracle.dense.load_state_dict(ours.out_proj.state_dict())
    for name in ("weight", "bias"):  # theirs in the order head, then q, k, v
        of_each = [
            getattr(p, name).unflatten(0, (heads, -1))
            for p in (ours.q_proj, ours.k_proj, ours.v_proj)
        ]
        getattr(oracle.query_key_value, name).copy_(torch.stack(of_each, dim=1).flatten(0, 2))
    x_first = x.transpose(0, 1)
    alibi = bloom.build_alibi_tensor(torch.ones(x_first.shape[:2]), heads, torch.float32)
    expected, probabilities = oracle(
        x_first, torch.zeros_like(x_first), alibi, causal_mask(stack).expand(2, 1, -1, -1)
    )
    output, weights = attended(stack, x, need_head_weights=True)
    assert difference(weights.transpose(0, 1), probabilities) <= 1e-5
    for found in (output, attended(stack, x)[0], step_by_step(stack, x)[0]):
        assert difference(found, expected.transpose(0, 1)) <= 1e-5


@every_direction
@torch.no_grad()
def test_an_encoders_attention_is_torchs_with_the_bias_of_x_transformers(direction):
    stack, x = stack_of("encoder", "alibi", bias_direction=direction), stream()
    behind = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    biases = directed(x_transformers_alibi()(LENGTH, LENGTH), direction, behind, behind.T)
    ours, width = stack.layers[0].self_attn, x.size(-1)
    oracle = torch.nn.MultiheadAttention(width, 4)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    oracle.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    oracle.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    oracle.out_proj.load_state_dict(ours.out_proj.state_dict())
    expected, _ = oracle(x, x, x, attn_mask=biases.repeat(2, 1, 1))
    assert difference(attended(stack, x)[0], expected) <= 1e-5
    assert difference(attended(stack, x, need_weights=True)[0], expected) <= 1e-5
    scores, output = written_out(stack, *heads_of(stack, x), biases)
    assert difference(logits(stack, x), scores) <= 2e-3  # of 3e4, in float32
    assert difference(output, expected) <= 1e-5


@every_direction
@torch.no_grad()
def test_stretched_biases_are_those_of_x_transformers_at_real_positions(direction):
    factors = (0.5, 1.3, 2.5)
    places = (4 * torch.tensor(factors)[:, None] * torch.arange(LENGTH)).round() / 4
    oracle = x_transformers_alibi().forward_custom_pos(places)
    for side in SIDES:
        stack = stack_of(side, "alibi", bias_direction=direction)
        behind = places[:, None, None] > places[:, None, :, None]
        expected = oracle
        if side == "encoder":
            expected = directed(oracle, direction, behind, behind.transpose(2, 3))
        seen = causal_mask(stack) == 0
        found = bias(stack, stretched(*factors))
        assert difference(found[..., seen], expected[..., seen]) <= 1e-5


@pytest.mark.parametrize(
    ("direction", "is_blind"), [("mirror", True), ("offset", False), ("heads", False)]
)
def test_mirror_alone_gives_a_reversed_sentence_the_reversed_encoding(direction, is_blind):
    model = visible("alibi", target="attention", bias_direction=direction)
    source = sentence(12)  # the end symbol is reversed with the words
    with torch.no_grad():
        forward, backward = (
            model.encoder(tokens, src_lengths=torch.tensor([12]))["encoder_out"][0]
            for tokens in (source, source.flip(1))
        )
    change = difference(forward, backward.flip(0))
    assert change <= 1e-5 if is_blind else change > 0.01


@torch.no_grad()
def test_heads_see_one_side_each_and_themselves():
    stack, x = stack_of("encoder", "alibi", bias_direction="heads"), stream()
    _, weights = attended(stack, x, need_head_weights=True)  # [H, B, T, S]
    ones = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    for head, of_head in enumerate(weights):
        hidden = ones.tril(-1) if head % 2 else ones.triu(1)
        assert float(of_head[:, hidden].abs().max()) == 0
        assert float(of_head[:, ~hidden].min()) > 0


def test_nothing_is_learned():
    assert not added_parameters("floater_transformer", "alibi", "all")


@pytest.mark.parametrize("side", SIDES)
@every_direction
@torch.no_grad()
def test_learned_slopes_take_the_place_of_the_fixed_ones(side, direction):
    stack, x = stack_of(side, "alibi", alibi_slopes="learned", bias_direction=direction), stream()
    m = stack.positions.slopes
    places = torch.arange(LENGTH)
    behind = places[:, None] < places
    expected = -m[:, None, None] * (places[:, None] - places).abs()
    if side == "encoder" and direction == "offset":
        expected = expected + 0.5 * m[:, None, None] * behind
    if side == "encoder" and direction == "heads":
        odd = (torch.arange(4) % 2 == 1)[:, None, None]
        expected = expected.masked_fill(torch.where(odd, behind.T, behind), HIDING_BIAS)
    output = written_out(stack, *heads_of(stack, x), expected)[1]
    found = [attended(stack, x)[0], attended(stack, x, need_weights=True)[0]]
    if side == "decoder":
        found.append(step_by_step(stack, x)[0])
    assert all(difference(one, output) <= 1e-5 for one in found)


def test_learned_slopes_start_as_the_fixed_ones_and_are_trained():
    learned, fixed = (
        build("alibi", target="attention", alibi_slopes=kind, dropout=0.0)
        for kind in ("learned", "fixed")
    )
    fixed.load_state_dict(learned.state_dict(), strict=False)
    batch = source_batch(), target_batch()
    one, other = (log_probs(model.eval(), *batch) for model in (learned, fixed))
    assert difference(one, other) == 0
    assert not position_parameters(fixed)
    loss_of(learned.train(), *batch).backward()
    for stack in (learned.encoder, learned.decoder):
        assert torch.equal(stack.positions.slopes.detach(), torch.tensor(slopes(2)))
        assert stack.positions.slopes.grad.ne(0).all()
    added = added_parameters("floater_transformer", "alibi", "all", alibi_slopes="learned")
    assert added == {f"{side}.positions.slopes": 8 for side in SIDES}


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_decoding_is_forcing_with_learned_slopes(left):
    model = visible("alibi", target="attention", alibi_slopes="learned")
    assert_steps_equal_one_pass(model, source_batch(left), target_batch())


def test_other_slopes_are_refused():
    words = "`--alibi-slopes` must be one of fixed, learned, but is 'none' instead"
    with pytest.raises(ValueError, match=words):
        build("alibi", target="attention", alibi_slopes="none")


def test_another_direction_is_refused():
    words = "`--bias-direction` must be one of offset, mirror, heads, but is 'both' instead"
    with pytest.raises(ValueError, match=words):
        build("alibi", target="attention", bias_direction="both")
