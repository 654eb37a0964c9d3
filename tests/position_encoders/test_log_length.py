"""Logits that grow with the logarithm of the number of keys: `--attention-log-length`."""

import math

import forcing
import helpers as h
import one_attention as one
import pytest
import torch

from fairseq_floater.position_encoders import POSITION_ENCODERS

N = 4
TRAINED = {"attention_log_length": N}
# floater is a signal, t5 has a bias in one block only, and shaw computes explicit weights.
MODELS = [
    *(("none", "all", "hidden"), ("floater", "input", "qkv"), ("t5", "input", "attention")),
    *((name, "all", "attention") for name in ("rope", "shaw", "forget", "cope")),
]
INSIDE = [name for name, cls in POSITION_ENCODERS.items() if "attention" in cls.targets]


def factors(counts):
    return torch.tensor([max(math.log(max(n, 1)), 0.1) / math.log(N) for n in counts])


@pytest.mark.parametrize("side", one.SIDES)
@pytest.mark.parametrize("encoder", INSIDE)
def test_content_and_positions_are_multiplied_as_one_sum(encoder, side):
    stack, without = (one.stack_of(side, encoder, **options) for options in (TRAINED, {}))
    x = one.stream()
    counts = range(1, len(x) + 1) if side == "decoder" else [len(x)] * len(x)
    expected = one.logits(without, x) * factors(counts)[:, None]
    found = one.logits(stack, x)
    seen = one.causal_mask(stack) == 0
    torch.testing.assert_close(found[..., seen], expected[..., seen], rtol=2e-5, atol=2e-5)
    fused, formed = (one.attended(stack, x, need_weights=w)[0] for w in (False, True))
    assert h.difference(fused, formed) <= h.TOLERANCE
    assert h.difference(fused, one.attended(without, x)[0]) > 0.01


@pytest.mark.parametrize("beam", [1, 2])
def test_cross_attention_counts_the_words_of_each_source(beam):
    attention = h.build("none", **TRAINED).eval().decoder.layers[0].encoder_attn
    query, source = torch.randn(3, 2 * beam, 64), torch.randn(6, 2, 64).repeat_interleave(beam, 1)
    padding = (torch.arange(6) < torch.tensor([[0], [4]])).repeat_interleave(beam, 0)
    options = {"static_kv": True, "beam_size": beam, "before_softmax": True}
    scores = []
    for attention.log_length in (N, 0.0):
        found, _ = attention(query, source, source, padding, incremental_state={}, **options)
        scores.append(found.unflatten(0, (2 * beam, -1)))
    expected = scores[1] * factors([6, 2]).repeat_interleave(beam)[:, None, None, None]
    torch.testing.assert_close(scores[0], expected, rtol=2e-5, atol=2e-5)


@h.parametrised(MODELS)
def test_the_contract_of_positions_holds(encoder, blocks, target):
    model = h.visible(encoder, blocks, target, position_base="drop", **TRAINED)
    for left in (True, False):
        batch = h.source_batch(left), h.target_batch(left)
        forcing.assert_padding_moves_nothing(model, *batch)
        forcing.assert_steps_equal_one_pass(model, *batch)
    for beam in (1, 2):
        forcing.assert_beams_keep_their_sentence(model, beam)
    models = (
        h.build(encoder, blocks, target, checkpoint_activations=on, **TRAINED)
        for on in (True, False)
    )
    forcing.assert_same_gradients(*map(h.randomise_positions, models))


def test_the_joint_keys_of_source_and_target_are_counted():
    model = h.visible("none", cross_self_attention=True, no_cross_attention=True, **TRAINED)
    forcing.assert_steps_equal_one_pass(model, h.source_batch(), h.target_batch(left=True))
