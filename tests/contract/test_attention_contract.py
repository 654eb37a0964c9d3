"""Beyond the common contract: positions inside attention, and direction in all encoders."""

import dataclasses

import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.transforms import Tokens

INSIDE = [c for c in h.CASES if c[2].startswith(("attention", "relative"))]
every_inside = h.parametrised(INSIDE)


def is_relative(model):
    return all(encoder.is_relative(encoder.spec.options) for _, _, encoder in h.signals(model))


@every_inside
def test_only_relative_encoders_ignore_a_shift_of_all_positions(
    encoder, blocks, target, monkeypatch
):
    model = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    before = h.log_probs(model, *batch)
    at = Tokens.at

    def further(tokens, use_slots):
        places = at(tokens, use_slots)
        return places._replace(
            queries=places.queries + 5, keys=places.keys + 5, num_rows=places.num_rows + 5
        )

    monkeypatch.setattr(Tokens, "at", further)
    change = h.difference(h.log_probs(model, *batch), before)
    assert change <= h.TOLERANCE if is_relative(model) else change > 1e-3


@every_inside
def test_slots_serve_as_positions_where_padding_stands_at_the_ends(
    encoder, blocks, target, monkeypatch
):
    model = h.visible(encoder, blocks, target)
    batches = [(h.source_batch(left), h.target_batch(left)) for left in (True, False)]
    by_slots = [h.log_probs(model, *batch) for batch in batches]
    read = Tokens.read
    monkeypatch.setattr(
        Tokens,
        "read",
        lambda *args, **kwargs: dataclasses.replace(
            read(*args, **kwargs), padding_at_ends=False, padding_behind=False
        ),
    )
    for batch, expected in zip(batches, by_slots):
        real = batch[1].ne(h.PAD)
        assert h.difference(h.log_probs(model, *batch)[real], expected[real]) <= h.TOLERANCE


@every_inside
def test_padding_between_tokens_is_skipped(encoder, blocks, target):
    model, words = h.visible(encoder, blocks, target), h.sentence(9)
    torn = torch.cat([words[:, :4], torch.full((1, 3), h.PAD), words[:, 4:]], dim=1)
    with torch.no_grad():
        whole, parted = (
            model.encoder(source, src_lengths=torch.tensor([9]))["encoder_out"][0]
            for source in (words, torn)
        )
    assert h.difference(parted[torn[0].ne(h.PAD)], whole) <= h.TOLERANCE


@h.most_cases
def test_a_reversed_source_does_not_get_the_reversed_encoding(encoder, blocks, target):
    """With a bias of |i - j| it would. The end symbol is reversed too, so it cannot show the order."""
    model = h.visible(encoder, blocks, target, position_base="auto")
    source = h.sentence(12)
    with torch.no_grad():
        forward, backward = (
            model.encoder(tokens, src_lengths=torch.tensor([12]))["encoder_out"][0]
            for tokens in (source, source.flip(1))
        )
    change = h.difference(forward, backward.flip(0))
    assert change <= h.TOLERANCE if encoder == "none" else change > 0.01


@every_inside
def test_nothing_positional_is_added_to_cross_attention(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    source = h.source_batch()
    with torch.no_grad():
        encoder_out = model.encoder(source, src_lengths=source.ne(h.PAD).sum(1))
        order = torch.randperm(source.size(1))
        shuffled = {
            **encoder_out,
            "encoder_out": [encoder_out["encoder_out"][0][order]],
            "encoder_padding_mask": [encoder_out["encoder_padding_mask"][0][:, order]],
        }
        one, other = (model.decoder(h.target_batch(), out)[0] for out in (encoder_out, shuffled))
    assert h.difference(one, other) <= h.TOLERANCE


@every_inside
def test_the_fused_attention_is_taken_where_no_hook_needs_the_weights(
    encoder, blocks, target, monkeypatch
):
    model = h.build(encoder, blocks, target, dropout=0.0).train()
    counted, softmax = [], torch.softmax

    def counting(*args, **kwargs):
        counted.append(1)
        return softmax(*args, **kwargs)

    monkeypatch.setattr(torch, "softmax", counting)
    h.loss_of(model).backward()
    explicit = sum(
        block.positions is not None and block.positions.needs_weights
        for stack in (model.encoder, model.decoder)
        for block in stack.layers
    )
    # A decoder returns the weights of its last block's cross-attention.
    assert len(counted) == explicit + 1


@every_inside
def test_cross_self_attention_is_refused(encoder, blocks, target):
    with pytest.raises(ValueError, match="`--cross-self-attention` must be off"):
        h.build(encoder, blocks, target, cross_self_attention=True)


@every_inside
def test_a_decoder_without_its_causal_mask_is_refused(encoder, blocks, target):
    model = h.build(encoder, blocks, target).eval()
    with pytest.raises(ValueError, match="full_context_alignment must be off"):
        model.decoder(
            h.shifted(h.sentence(4)),
            encoder_out=model.encoder(h.sentence(5), torch.tensor([5])),
            full_context_alignment=True,
        )


@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
def test_another_target_is_refused(encoder):
    target = POSITION_ENCODERS[encoder].targets[0]
    if target in ("attention", "stage"):
        with pytest.raises(ValueError, match=f"`--position-target` must be {target} .*{encoder}"):
            h.build(encoder, "all", "hidden")
