"""Positions in some blocks alone: `--position-blocks 0,2`."""

import helpers as h
import pytest
import roberta_models

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders import POSITION_ENCODERS, signature

THREE = {"encoder_layers": 3, "decoder_layers": 3}
KEEP = {"encoder_layers_to_keep": "1,2", "decoder_layers_to_keep": "1,2"}
SOME = "0,2"


PLACED = [(case, True) for case in h.ALL_BLOCKS] + [(case, False) for case in h.MECHANISMS]


@pytest.mark.parametrize(
    ("case", "alone"),
    PLACED,
    ids=["-".join((*case, "alone" if alone else "base")) for case, alone in PLACED],
)
def test_the_blocks_that_are_named_have_positions_and_no_other(case, alone):
    encoder, blocks, target = case
    options = {**THREE, "no_token_positional_embeddings": alone}
    some, every = (h.visible(encoder, b, target, **options) for b in (SOME, blocks))
    state, batch = some.state_dict(), (h.source_batch(), h.target_batch())
    every.load_state_dict(state, strict=False)
    found = h.log_probs(some, *batch)
    assert (h.difference(h.log_probs(every, *batch), found) > 1e-3) == (encoder != "none")
    for stack, name, _ in h.signals(every):
        setattr(stack.layers[1], name, None)
    every.train().eval()  # forgets the tables
    assert h.difference(h.log_probs(every, *batch), found) <= h.TOLERANCE
    if alone:  # pruning block 0 would remove the base
        pruned = h.build(encoder, SOME, target, seed=5, **options, **KEEP).eval()
        pruned.load_state_dict(state, strict=True, model_cfg=pruned.args)
        del some.encoder.layers[0], some.decoder.layers[0]
        expected = h.log_probs(some.train().eval(), *batch)
        assert h.difference(h.log_probs(pruned, *batch), expected) <= h.TOLERANCE


@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
def test_the_number_0_is_the_input(encoder):
    zero, first = (h.build(encoder, blocks, None) for blocks in ("0", "input"))
    assert signature(zero.args) == signature(first.args)
    assert list(zero.state_dict()) == list(first.state_dict())
    assert h.build(encoder, "1,0,1", None).args.position_blocks == "0,1"


def test_the_sinusoid_of_the_first_block_goes_where_that_block_has_none():
    for model in (h.build("sinusoidal", "1"), roberta_models.roberta("sinusoidal", "1")):
        assert all(stack.embed_positions is None for stack in h.stacks(model))
    for model in (h.build("sinusoidal", "0,1"), h.build("floater", "1")):
        assert all(stack.embed_positions is not None for stack in h.stacks(model))


def test_a_shallow_stack_takes_the_numbers_that_it_has():
    def built(blocks, **options):
        return h.build("t5", blocks, "attention", encoder_layers=4, decoder_layers=2, **options)

    owning = [[b.positions is not None for b in s.layers] for s in h.stacks(built("1,3"))]
    assert owning == [[False, True, False, True], [False, True]]
    built("2,3", position_sides="source")
    with pytest.raises(
        ValueError, match="`--position-blocks`.* is 2,3, and the decoder has only 0, 1"
    ):
        built("2,3")
    for blocks, side, last in (("1,4", "both", 3), ("1,3", "target", 1)):
        with pytest.raises(ValueError, match=f"blocks from 0 to {last}, .* but names {blocks[2]}"):
            built(blocks, position_sides=side)
    with pytest.raises(ValueError, match=r"`--deberta-absolute` .* positions, 1, but is 2"):
        h.build("deberta", "1", "attention", deberta_absolute=2)


def test_a_roberta_has_positions_in_the_blocks_that_are_named():
    model = roberta_models.roberta("floater", "1")
    expected = added_parameters("floater_roberta_tiny", "floater", "1")
    assert {n for n, _ in model.named_parameters() if ".positions." in n} == expected.keys()
    with pytest.raises(ValueError, match="blocks from 0 to 1, .* but names 2"):
        roberta_models.roberta("floater", SOME)
