"""T5's buckets and attention beside Hugging Face's and x-transformers'."""

import pytest
import torch
from helpers import TOLERANCE, build, difference, log_probs, position_parameters, sentence
from one_attention import (
    SIDES,
    attended,
    causal_mask,
    stack_of,
    step_by_step,
    stream,
)
from oracles import transformers_module

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.t5 import log_buckets

every_side = pytest.mark.parametrize("side", SIDES)
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


@pytest.mark.parametrize(("side", "first"), [("encoder", 91), ("decoder", 113)])
def test_the_last_bucket_begins_where_the_docs_say(side, first):
    count = 32 if side == "decoder" else 16
    buckets = log_buckets(torch.arange(400), count, 128)
    assert buckets[first - 1] == count - 2
    assert set(buckets[first:].tolist()) == {count - 1}
    assert buckets[: count // 2].tolist() == list(range(count // 2))


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
