"""Positions in some blocks alone: `--position-blocks 0,2`."""

import helpers as h
import pytest
import roberta_models

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders import POSITION_ENCODERS, signature

THREE = {"encoder_layers": 3, "decoder_layers": 3}
SOME = "0,2"
# Of these fairseq's sinusoid stands in for the first block.
ALONE = {"no_token_positional_embeddings": True}


def without_block(model, number):
    """Take a block's positions from it."""
    for stack, name, _ in h.signals(model):
        setattr(stack.layers[number], name, None)
    return model.train().eval()  # forgets the tables


@h.every_encoder
@pytest.mark.parametrize("base", [{}, ALONE], ids=["base", "alone"])
def test_the_blocks_that_are_named_have_positions_and_no_other(encoder, blocks, target, base):
    some = h.visible(encoder, SOME, target, **THREE, **base)
    every = h.visible(encoder, blocks, target, **THREE, **base)
    every.load_state_dict(some.state_dict(), strict=False)
    batch = h.source_batch(), h.target_batch()
    found = h.log_probs(some, *batch)
    different = h.difference(h.log_probs(every, *batch), found) > 1e-3
    assert different == (encoder != "none")
    assert h.difference(h.log_probs(without_block(every, 1), *batch), found) <= h.TOLERANCE
    parameters = {name for name, _ in some.named_parameters() if ".positions." in name}
    assert not any(".layers.1." in name for name in parameters)


@h.every_encoder
def test_a_kept_block_keeps_the_number_it_was_trained_under(encoder, blocks, target):
    donor = h.visible(encoder, SOME, target, **THREE, **ALONE)
    keep = {"encoder_layers_to_keep": "1,2", "decoder_layers_to_keep": "1,2"}
    pruned = h.build(encoder, SOME, target, seed=5, **THREE, **keep, **ALONE).eval()
    pruned.load_state_dict(donor.state_dict(), strict=True, model_cfg=pruned.args)
    for stack in (donor.encoder, donor.decoder):
        del stack.layers[0]
    batch = h.source_batch(), h.target_batch()
    expected = h.log_probs(donor.train().eval(), *batch)
    assert h.difference(h.log_probs(pruned, *batch), expected) <= h.TOLERANCE


@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
def test_the_number_0_is_the_input(encoder):
    zero, first = (h.build(encoder, blocks, None) for blocks in ("0", "input"))
    assert signature(zero.args) == signature(first.args)
    assert list(zero.state_dict()) == list(first.state_dict())
    assert h.build(encoder, "1,0,1", None).args.position_blocks == "0,1"


def test_the_sinusoid_of_the_first_block_goes_where_that_block_has_none():
    assert h.build("sinusoidal", "0,1").encoder.embed_positions is not None
    for model in (h.build("sinusoidal", "1"), roberta_models.roberta("sinusoidal", "1")):
        assert all(stack.embed_positions is None for stack in h.stacks(model))
    assert h.build("floater", "1").encoder.embed_positions is not None


def test_a_shallow_stack_takes_the_numbers_that_it_has():
    deep = {"encoder_layers": 4, "decoder_layers": 2}
    model = h.build("t5", "1,3", "attention", **deep)
    owning = [[b.positions is not None for b in s.layers] for s in h.stacks(model)]
    assert owning == [[False, True, False, True], [False, True]]
    with pytest.raises(
        ValueError, match="`--position-blocks`.* is 2,3, and the decoder has 0, 1 al"
    ):
        h.build("t5", "2,3", "attention", **deep)
    h.build("t5", "2,3", "attention", position_sides="source", **deep)
    with pytest.raises(ValueError, match="blocks from 0 to 3, .* but names 4"):
        h.build("t5", "1,4", "attention", **deep)
    with pytest.raises(ValueError, match="blocks from 0 to 1, .* but names 3"):
        h.build("t5", "1,3", "attention", position_sides="target", **deep)
    with pytest.raises(ValueError, match=r"`--deberta-absolute` .* positions, 1, but is 2"):
        h.build("deberta", "1", "attention", deberta_absolute=2)


@h.every_encoder
def test_a_roberta_has_positions_in_the_blocks_that_are_named(encoder, blocks, target):
    model = roberta_models.visible(encoder, "1", target)
    assert [b.positions is None for b in h.stacks(model)[0].layers] == [True, encoder == "none"]
    expected = added_parameters("floater_roberta_tiny", encoder, "1", position_target=target)
    found = {n for n, _ in model.named_parameters() if ".positions." in n}
    assert found == expected.keys()
    with pytest.raises(ValueError, match="blocks from 0 to 1, .* but names 2"):
        roberta_models.roberta(encoder, SOME, target)
