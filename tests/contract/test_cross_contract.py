"""The contract for encoders of distances that also act between target and source tokens."""

import forcing
import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders import encoder_class
from fairseq_floater.position_encoders.registry import ENCODERS

CROSS = {"position_cross": "relative"}
CROSSING = [
    c for c in h.CASES if encoder_class(c[0], h.options_of(c[2])["position_target"]).can_cross
]
every_crossing = h.parametrised(CROSSING)
every_other = h.parametrised([c for c in h.ALL_BLOCKS if c not in CROSSING])


@every_crossing
def test_padding_moves_nothing(encoder, blocks, target):
    model = h.visible(encoder, blocks, target, **CROSS)
    for left in (True, False):
        forcing.assert_padding_moves_nothing(model, h.source_batch(left), h.target_batch(left))


@pytest.mark.parametrize("encoder", ["rope", "xl", "tener", "nezha"])
def test_beside_a_long_sentence_a_short_one_keeps_its_places(encoder):
    """Every other target token lies between source tokens, whatever `--position-eval` does elsewhere."""
    across = {**CROSS, "position_cross_ratio": 1.5}
    model = h.visible(encoder, target="attention", position_eval="ntk:5", **across)
    forcing.assert_padding_moves_nothing(model, h.source_batch(), h.target_batch())


@every_crossing
def test_step_by_step_equals_one_pass(encoder, blocks, target):
    model = h.visible(encoder, blocks, target, **CROSS, position_cross_ratio=2.0)
    forcing.assert_steps_equal_one_pass(model, h.source_batch(), h.target_batch())
    for beam in (1, 2):
        forcing.assert_beams_keep_their_sentence(model, beam)


@every_crossing
def test_activation_checkpointing(encoder, blocks, target):
    options = {"dropout": 0.3, "attention_dropout": 0.1, **CROSS}
    models = [
        h.randomise_positions(h.build(encoder, blocks, target, **options, **further))
        for further in ({}, {"checkpoint_activations": True})
    ]
    forcing.assert_same_gradients(models[1], models[0])
    across = [p for name, p in models[0].named_parameters() if "source_positions" in name]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in across)


@every_crossing
def test_bfloat16(encoder, blocks, target):
    model = h.visible(encoder, blocks, target, **CROSS)
    batch = h.source_batch(), h.target_batch()
    real, exact = batch[1].ne(h.PAD), h.log_probs(model, *batch)
    rounded = h.log_probs(model.to(torch.bfloat16), *batch).float()
    assert float((rounded - exact)[real].abs().mean()) < 0.2


@every_other
def test_an_encoder_without_distances_between_both_sides_refuses(encoder, blocks, target):
    with pytest.raises(ValueError, match=f"`--position-cross` must be off .*{encoder}: "):
        h.build(encoder, blocks, target, **CROSS)


def test_a_table_for_both_sides_has_a_row_for_the_longer():
    limits = {"max_source_positions": 8, "max_target_positions": 16}
    model = h.visible("tupe", target="attention", tupe_positions="learned", **CROSS, **limits)
    assert len(model.decoder.source_positions.positions) == 16
    batch = h.sentence(8), h.shifted(h.sentence(16))
    assert h.log_probs(model, *batch).isfinite().all()


def test_every_encoder_that_can_cross_is_walked():
    built_in = {name for name, entry in ENCODERS.items() if isinstance(entry.path, str)}
    assert {c[0] for c in CROSSING} & built_in == built_in - {
        *("sinusoidal", "learned", "rnn", "xpos", "fire", "cope", "forget"),
        *("conv", "token-rnn", "complex", "none"),
    }
