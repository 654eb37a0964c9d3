"""`--position-sides`: one side as in a model with positions on both, the other as with none."""

import helpers as h
import pytest
import torch
from forcing import assert_steps_equal_one_pass

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders import POSITION_ENCODERS

SOME = [case for case in h.MECHANISMS if case[0] != "none"]
every_case = h.parametrised([*SOME, ("sinusoidal", "input", "hidden")])
every_side = pytest.mark.parametrize("side", ["source", "target"])


def models(side, *case, **options):
    """Models with positions on ``side``, on both sides and on none, with the same parameters."""
    one = h.visible(*case, position_sides=side, **options)
    both, none = h.build(*case, **options).eval(), h.build("none").eval()
    h.randomise_positions(both)
    for model in (both, none):
        model.load_state_dict(one.state_dict(), strict=False)
    return one, both, none


@every_side
def test_cross_self_attention_reads_biases_of_both_sides(side):
    with pytest.raises(ValueError, match=f"must be off with `--position-sides {side}`"):
        h.build("floater", "all", "qkv", position_sides=side, cross_self_attention=True)


@every_side
@every_case
@torch.no_grad()
def test_each_side_is_that_of_the_model_with_or_without(side, encoder, blocks, target):
    one, both, none = models(side, encoder, blocks, target)
    source, words = h.source_batch(), h.target_batch()
    lengths, real = source.ne(h.PAD).sum(1), words.ne(h.PAD)
    encoded = one.encoder(source, src_lengths=lengths)
    with_source = both if side == "source" else none
    expected = with_source.encoder(source, src_lengths=lengths)["encoder_out"][0]
    seen = source.ne(h.PAD).T
    assert h.difference(encoded["encoder_out"][0][seen], expected[seen]) <= h.TOLERANCE
    found = one.decoder(words, encoder_out=encoded)[0][real]
    if target != "qkv":  # there cross-attention has positions of the source
        with_target = both if side == "target" else none
        assert (
            h.difference(found, with_target.decoder(words, encoder_out=encoded)[0][real])
            <= h.TOLERANCE
        )
    else:
        assert (one.decoder.source_positions.name == "none") == (side == "target")
    assert h.difference(found, both.decoder(words, encoder_out=encoded)[0][real]) > 1e-3 or (
        side == "target" and target != "qkv"
    )


@every_side
@every_case
def test_decoding_is_forcing_and_all_is_trained(side, encoder, blocks, target):
    model = h.visible(encoder, blocks, target, position_sides=side, share_all_embeddings=True)
    batch = h.source_batch(), h.target_batch()
    assert_steps_equal_one_pass(model, *batch)
    h.loss_of(model.train(), *batch).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@every_side
@pytest.mark.parametrize("encoder", ["floater", "rope", "t5", "shaw", "learned", "complex"])
def test_parameters_are_those_of_one_side(side, encoder):
    found = added_parameters("floater_transformer", encoder, "all", position_sides=side)
    both = added_parameters("floater_transformer", encoder, "all")
    stacks = {"source": ("encoder.", "decoder.layers.", "decoder.source"), "target": ("decoder.",)}
    of_side = {
        name: count
        for name, count in both.items()
        if name.startswith(stacks[side])
        and ("source_positions" in name or name.startswith("encoder.")) == (side == "source")
    }
    assert found == of_side
    model = h.build(encoder, "all", POSITION_ENCODERS[encoder].targets[0], position_sides=side)
    assert bool(h.position_parameters(model)) == bool(both)
    assert "none" in {signal.name for _, _, signal in h.signals(model)}


@every_side
@pytest.mark.parametrize("base", ["keep", "drop"])
def test_the_base_is_of_that_side_too(side, base):
    model = h.build("t5", target="attention", position_sides=side, position_base=base)
    has_base = [s.embed_positions is not None for s in (model.encoder, model.decoder)]
    assert has_base == [base == "keep" and side == s for s in ("source", "target")]


@every_side
def test_the_side_without_positions_joins_nothing_to_its_tokens(side):
    model = h.build("learned", position_combine="concat", position_sides=side)
    stacks = {"source": model.encoder, "target": model.decoder}
    for name, stack in stacks.items():
        assert (stack.positions.joint is not None) == (name == side)


def test_a_decoder_without_positions_has_no_limit_of_length():
    limits = {"max_source_positions": 16, "max_target_positions": 16}
    source, target = h.build("learned", position_sides="source", **limits).max_positions()
    assert source == 16 and target > 16
