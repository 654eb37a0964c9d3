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
MODELS = {
    "none": ("none", "all", "hidden"),
    "floater-qkv": ("floater", "input", "qkv"),
    "rope": ("rope", "all", "attention"),
    "t5": ("t5", "input", "attention"),  # one block has a bias, one has not
    "shaw": ("shaw", "all", "attention"),  # forms its weights
    "forget": ("forget", "all", "attention"),
    "cope": ("cope", "all", "attention"),
}
every_model = pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
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
    source, query = torch.randn(6, 2, 64), torch.randn(3, 2 * beam, 64)
    padding = torch.arange(6) < torch.tensor([[0], [4]])
    states = source.repeat_interleave(beam, 1), padding.repeat_interleave(beam, 0)

    def scores():
        key, mask = states
        options = {"incremental_state": {}, "static_kv": True, "beam_size": beam}
        found = attention(query, key, key, mask, before_softmax=True, **options)[0]
        return found.unflatten(0, (2 * beam, -1))

    found, attention.log_length = scores(), 0.0
    expected = scores() * factors([6, 2]).repeat_interleave(beam)[:, None, None, None]
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@every_model
def test_the_contract_of_positions_holds(case):
    model = h.visible(*case, position_base="drop", **TRAINED)
    for left in (True, False):
        batch = h.source_batch(left), h.target_batch(left)
        forcing.assert_padding_moves_nothing(model, *batch)
        forcing.assert_steps_equal_one_pass(model, *batch)
    for beam in (1, 2):
        forcing.assert_beams_keep_their_sentence(model, beam)


@every_model
def test_activation_checkpointing(case):
    models = (
        h.build(*case, dropout=0.3, **TRAINED, **o) for o in ({"checkpoint_activations": True}, {})
    )
    forcing.assert_same_gradients(*map(h.randomise_positions, models))


def test_the_joint_keys_of_source_and_target_are_counted():
    model = h.visible("none", cross_self_attention=True, no_cross_attention=True, **TRAINED)
    forcing.assert_steps_equal_one_pass(model, h.source_batch(), h.target_batch(left=True))


def test_linear_attention_has_no_logits_to_multiply():
    with pytest.raises(
        ValueError, match="`--attention-log-length` must be 0 with .* but is 4 instead"
    ):
        h.build("none", attention_kind="linear", **TRAINED)
