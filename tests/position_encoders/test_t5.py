"""T5's buckets and attention beside Hugging Face's and x-transformers'."""

import pytest
import torch
from helpers import TOLERANCE, build, difference, log_probs, position_parameters, sentence, visible
from one_attention import (
    LENGTH,
    SIDES,
    attended,
    bias,
    causal_mask,
    heads_of,
    logits,
    logits_differ_by,
    stack_of,
    step_by_step,
    stream,
    stretched,
    tokens,
)
from oracles import transformers_module

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.t5 import log_buckets

every_side = pytest.mark.parametrize("side", SIDES)
LONG = 300  # tokens: past every bucket's beginning
OPTIONS = [(32, 128), (32, 40), (8, 20), (4, 3), (64, 1000)]
every_option = pytest.mark.parametrize(("buckets", "furthest"), OPTIONS)
SMALL = {"t5_buckets": 8, "t5_max_distance": 9}  # reached within LENGTH


def hugging_face(stack):
    """T5Attention with the weights of the stack's first block; its logits are not divided."""
    t5 = transformers_module("t5.modeling_t5")
    spec, ours = stack.positions.spec, stack.layers[0].self_attn
    config = t5.T5Config(
        d_model=spec.dim,
        d_kv=spec.head_dim,
        num_heads=spec.heads,
        dropout_rate=0.0,
        is_decoder=spec.causal,
        relative_attention_num_buckets=spec.options["t5_buckets"],
        relative_attention_max_distance=spec.options["t5_max_distance"],
        attn_implementation="eager",
    )
    oracle = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    with torch.no_grad():
        oracle.relative_attention_bias.weight.copy_(stack.positions.weight)
        for theirs, projection in zip(
            (oracle.q, oracle.k, oracle.v, oracle.o),
            (ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj),
        ):
            theirs.weight.copy_(projection.weight)
            projection.bias.zero_()  # T5 has none
        oracle.q.weight.mul_(spec.head_dim**-0.5)
    return oracle


@every_side
@every_option
@torch.no_grad()
def test_biases_are_hugging_faces_t5_attentions(side, buckets, furthest):
    stack = stack_of(side, "t5", t5_buckets=buckets, t5_max_distance=furthest)
    oracle = hugging_face(stack)
    expected = oracle.compute_bias(LONG, LONG) + causal_mask(stack, LONG)
    found = bias(stack, tokens(LONG)) + causal_mask(stack, LONG)
    assert torch.equal(found, expected)
    for t in (0, 1, 17, 250):  # a step of decoding
        step = bias(stack, tokens(t + 1, last_only=True))
        assert torch.equal(step, oracle.compute_bias(1, t + 1, past_seen_tokens=t))


@every_side
@every_option
@torch.no_grad()
def test_biases_are_those_of_x_transformers(side, buckets, furthest):
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    stack = stack_of(side, "t5", t5_buckets=buckets, t5_max_distance=furthest)
    oracle = x_transformers.RelativePositionBias(
        scale=1, causal=side == "decoder", num_buckets=buckets, max_distance=furthest, heads=4
    )
    oracle.relative_attention_bias.weight.copy_(stack.positions.weight)
    mask = causal_mask(stack, LONG)
    assert torch.equal(bias(stack, tokens(LONG))[0] + mask, oracle(LONG, LONG) + mask)


@every_side
@torch.no_grad()
def test_attention_is_hugging_faces(side):
    stack, x = stack_of(side, "t5", **SMALL), stream()
    oracle, mask = hugging_face(stack), causal_mask(stack)
    expected, _, probabilities = oracle(x.transpose(0, 1), mask=mask.expand(2, 1, -1, -1))
    fused, _ = attended(stack, x)
    output, weights = attended(stack, x, need_head_weights=True)
    assert difference(weights.transpose(0, 1), probabilities) <= 1e-5
    for found in (fused, output):
        assert difference(found, expected.transpose(0, 1)) <= 1e-5
    if side == "decoder":
        assert difference(step_by_step(stack, x)[0], expected.transpose(0, 1)) <= 1e-5


@every_side
@torch.no_grad()
def test_logits_keep_one_over_the_root_of_d(side):
    stack, x = stack_of(side, "t5", **SMALL), stream()
    q, k, _ = heads_of(stack, x)
    expected = q @ k.transpose(2, 3) / 16**0.5 + bias(stack) + causal_mask(stack)
    assert logits_differ_by(stack, logits(stack, x), expected) <= 1e-5


@pytest.mark.parametrize(("side", "first"), [("encoder", 91), ("decoder", 113)])
def test_the_last_bucket_begins_where_the_docs_say(side, first):
    count = 32 if side == "decoder" else 16
    buckets = log_buckets(torch.arange(400), count, 128)
    assert buckets[first - 1] == count - 2
    assert set(buckets[first:].tolist()) == {count - 1}
    assert buckets[: count // 2].tolist() == list(range(count // 2))


@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_stretched_biases_are_those_of_the_buckets_of_real_distances(side):
    oracle = transformers_module("t5.modeling_t5").T5Attention
    stack = stack_of(side, "t5", **SMALL)
    factors = (0.5, 1.3, 2.5)
    found = bias(stack, stretched(*factors))
    count = 8 if side == "decoder" else 4
    for factor, ours in zip(factors, found):
        places = (4 * factor * torch.arange(LENGTH)).round() / 4
        distances = places[:, None] - places
        # Theirs of the past; a whole bucket where distances are exact.
        buckets = oracle._relative_position_bucket(-distances.abs(), False, count, 9)
        rows = buckets.round().long() + count * (distances < 0)
        visible_ = causal_mask(stack) == 0
        expected = stack.positions.weight[rows % 8].permute(2, 0, 1)
        assert torch.equal(ours[:, visible_], expected[:, visible_])


@torch.no_grad()
def test_each_direction_has_its_own_buckets():
    stack = stack_of("encoder", "t5", **SMALL)
    behind, before = bias(stack)[0, :, 0, 3], bias(stack)[0, :, 3, 0]
    assert torch.equal(before, stack.positions.weight[2])  # exact: 0, 1; then 2 .. 4
    assert torch.equal(behind, stack.positions.weight[4 + 2])


def test_the_bias_starts_at_zero_and_is_shared_by_the_blocks():
    model, none = (
        build(name, no_token_positional_embeddings=True, **extra).eval()
        for name, extra in (("t5", {"target": "attention"}), ("none", {}))
    )
    none.load_state_dict(model.state_dict(), strict=False)
    assert not any(p.any() for p in position_parameters(model))
    batch = sentence(9), sentence(7)
    assert difference(log_probs(model, *batch), log_probs(none, *batch)) <= TOLERANCE
    added = added_parameters("floater_transformer", "t5", "all")
    assert added == {"encoder.positions.weight": 256, "decoder.positions.weight": 256}
    few = added_parameters("floater_transformer", "t5", "input", t5_buckets=8)
    assert sum(few.values()) == 128


def test_past_the_furthest_distance_the_bias_is_constant():
    model = visible("t5", target="attention", t5_buckets=8, t5_max_distance=9)
    at_nine, further = (bias(model.encoder, tokens(60))[0, :, 59, 59 - d] for d in (9, 50))
    assert torch.equal(at_nine, further)
    assert not torch.equal(at_nine, bias(model.encoder, tokens(60))[0, :, 59, 59 - 4])


@pytest.mark.parametrize("buckets", [-4, 0, 2, 6, 30])
def test_buckets_that_cannot_be_shared_out_are_refused(buckets):
    words = f"`--t5-buckets` must be a multiple of 4, but is {buckets} instead: half of each side"
    with pytest.raises(ValueError, match=words):
        build("t5", target="attention", t5_buckets=buckets)


def test_a_distance_within_the_exact_buckets_is_refused():
    words = "`--t5-max-distance` must be more than 16, half of --t5-buckets, but is 16 instead"
    with pytest.raises(ValueError, match=words):
        build("t5", target="attention", t5_max_distance=16)
    model = build("t5", target="attention", t5_max_distance=17)
    assert bias(model.decoder, tokens(40)).isfinite().all()
