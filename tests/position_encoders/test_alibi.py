"""ALiBi's slopes, biases and attention beside x-transformers', Hugging Face Bloom's and torch's."""

import pytest
import torch
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
    causal_mask,
    stack_of,
    step_by_step,
    stream,
)
from oracles import transformers_module

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.alibi import slopes


def x_transformers_alibi(heads=4):
    package = pytest.importorskip("x_transformers.x_transformers")
    return package.AlibiPositionalBias(heads=heads)


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_those_of_x_transformers_and_bloom(heads):
    ours = torch.tensor(slopes(heads))
    assert difference(ours, x_transformers_alibi(heads).slopes.flatten()) <= 1e-7
    of_bloom = transformers_module("bloom.modeling_bloom").build_alibi_tensor
    one_apart = of_bloom(torch.ones(1, 2), heads, torch.float32)[:, 0]
    assert difference(ours, one_apart[:, 1] - one_apart[:, 0]) <= 1e-7


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
