"""RoPE beside rotary-embedding-torch, x-transformers and Hugging Face's RoFormer."""

import pytest
import torch
from forcing import assert_padding_moves_nothing, assert_steps_equal_one_pass
from helpers import (
    TOLERANCE,
    build,
    difference,
    log_probs,
    parts,
    source_batch,
    target_batch,
    visible,
)
from one_attention import (
    LENGTH,
    SIDES,
    attended,
    causal_mask,
    heads_of,
    stack_of,
    step_by_step,
    stream,
    written_out,
)
from oracles import transformers_module

from fairseq_floater.position_encoders.rope import turn_pairs

every_side = pytest.mark.parametrize("side", SIDES)
OPTIONS = {
    "default": {},
    "base": {"rope_base": 50.0},
    "partial": {"rope_partial": 0.5},
    "learned": {"rope_learned": True},
    "values": {"rope_values": True, "rope_partial": 0.75, "rope_base": 200.0},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
HEAD = 16


def frequencies(stack):
    """w_c, by the formula or as learned."""
    encoder = stack.positions
    if encoder.frequencies is not None:
        return encoder.frequencies.detach()
    turned = encoder.spec.options["rope_partial"] * HEAD
    return torch.tensor(
        [encoder.spec.options["rope_base"] ** (-2 * c / turned) for c in range(int(turned / 2))]
    )


def rotary_embedding(stack):
    package = pytest.importorskip("rotary_embedding_torch")
    freqs = frequencies(stack)
    return package.RotaryEmbedding(2 * len(freqs), custom_freqs=freqs)


def turned(stack, x, turn):
    """q, k and v as ``turn`` leaves them, v only where it is turned."""
    q, k, v = heads_of(stack, x)
    return turn(q), turn(k), turn(v) if stack.positions.spec.options["rope_values"] else v


@every_option
@torch.no_grad()
def test_a_step_of_decoding_is_rotary_embedding_torchs_offset(options):
    stack, x = stack_of("decoder", "rope", **options), stream()
    oracle = rotary_embedding(stack)
    q, k, v = turned(stack, x, oracle.rotate_queries_or_keys)
    expected = written_out(stack, q, k, v)[1]
    found, state = step_by_step(stack, x)
    assert difference(found, expected) <= 1e-5
    cached = stack.layers[0].self_attn._get_input_buffer(state)
    assert difference(cached["prev_key"], k) <= 1e-5
    assert difference(cached["prev_value"], v) <= 1e-5
    if not stack.positions.spec.options["rope_values"]:
        late, of_key, values = heads_of(stack, x)
        late, keys = oracle.rotate_queries_with_cached_keys(late[:, :, -1:], of_key)
        assert difference(found[-1:], written_out(stack, late, keys, values)[1]) <= 1e-5


@every_side
@pytest.mark.parametrize("values", [False, True], ids=["q-k", "q-k-v"])
@torch.no_grad()
def test_attention_is_roformers(side, values):
    roformer = transformers_module("roformer.modeling_roformer")
    stack, x = stack_of(side, "rope", rope_values=values), stream()
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
    table = roformer.RoFormerSinusoidalPositionalEmbedding(LENGTH, HEAD)
    table.weight.copy_(table.create_weight())
    read, probabilities = oracle(
        x.transpose(0, 1), causal_mask(stack), table((2, LENGTH))[None, None]
    )
    output, weights = attended(stack, x, need_head_weights=True)
    assert difference(weights.transpose(0, 1), probabilities) <= 1e-5
    assert difference(output, ours.out_proj(read).transpose(0, 1)) <= 1e-5


@every_side
def test_far_angles_do_not_collide(side):
    """Angles in float32 are off by 0.004 at 100,000; the first frequency is 1 radian a token."""
    stack = stack_of(side, "rope")
    with torch.no_grad():
        rows = stack.positions(100_001, parts(stack, "positions"), torch.float32)
    exact = 100_000 * torch.tensor(10_000.0).double() ** (-torch.arange(8).double() / 8)
    expected = torch.stack([exact.cos(), exact.sin()]).float()
    assert difference(rows[100_000], expected) <= 1e-6


@every_option
@torch.no_grad()
def test_a_shift_of_all_positions_is_seen_with_turned_values_alone(options):
    stack, x = stack_of("encoder", "rope", **options), stream()
    q, k, v = heads_of(stack, x)
    oracle = rotary_embedding(stack)
    here, there = (
        written_out(
            stack, *turned(stack, x, lambda h, o=o: oracle.rotate_queries_or_keys(h, offset=o))
        )[1]
        for o in (0, 5)
    )
    assert difference(attended(stack, x)[0], here) <= 1e-5
    changes = difference(here, there) > 1e-3
    assert changes == (not stack.positions.is_relative(options)) == bool(options.get("rope_values"))


@every_option
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_decoding_is_forcing_with_every_option(options, left):
    model = visible("rope", target="attention", **options)
    batch = source_batch(left), target_batch()
    assert_steps_equal_one_pass(model, *batch)
    assert_padding_moves_nothing(model, *batch)


def test_learned_frequencies_start_as_the_fixed_ones():
    models = [
        build("rope", target="attention", rope_base=300.0, rope_learned=learned).eval()
        for learned in (False, True)
    ]
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    one, other = (log_probs(model, source_batch(), target_batch()) for model in models)
    assert difference(one, other) <= TOLERANCE


def test_pairs_that_cannot_be_read_as_complex_numbers_turn_alike():
    x = torch.randn(2, 3, 5, 9)[..., :8]  # rows begin at odd places
    angles = torch.randn(5, 4)
    turned = turn_pairs(x, angles.cos(), angles.sin())
    expected = turn_pairs(x.contiguous(), angles.cos(), angles.sin())
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)
