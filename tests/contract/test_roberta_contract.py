"""The contract of every position encoder of the registry in RoBERTa, an encoder-only model."""

import forcing
import helpers as h
import pytest
import torch
from roberta_models import logits, roberta, visible

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS


def log_probs(model, tokens):
    return logits(model, tokens).float().log_softmax(-1)


def loss_of(model, tokens):
    return h.gold_loss(model(tokens)[0].log_softmax(-1), tokens)


@h.every_case
def test_a_sentence_alone_is_the_sentence_in_a_padded_batch(encoder, blocks, target):
    model = visible(encoder, blocks, target)
    for left in (True, False):
        batch = h.source_batch(left)
        together = log_probs(model, batch)
        for tokens, row in zip(batch, together):
            alone = log_probs(model, tokens[tokens.ne(h.PAD)][None])[0]
            assert h.difference(row[tokens.ne(h.PAD)], alone) <= h.TOLERANCE


@h.every_case
def test_the_order_of_tokens_matters_exactly_where_there_are_positions(encoder, blocks, target):
    model = visible(encoder, blocks, target)
    tokens = h.sentence(9)
    order = torch.tensor([0, 4, 2, 3, 1, 5, 6, 7, 8])
    change = h.difference(log_probs(model, tokens)[:, order], log_probs(model, tokens[:, order]))
    assert change <= h.TOLERANCE if encoder == "none" else change > 1e-3


@h.most_cases
def test_length(encoder, blocks, target):
    # Without RoBERTa's table, which would set another limit.
    model = visible(encoder, blocks, target, max_positions=16, position_base="drop")
    if POSITION_ENCODERS[encoder].inductive:
        assert model.max_positions() == UNLIMITED_POSITIONS
        assert log_probs(model, h.sentence(600)).isfinite().all()
        return
    assert model.max_positions() == 16
    with pytest.raises(ValueError, match="17 tokens.*16 positions.*--max-positions"):
        log_probs(model, h.sentence(17))
    wide = torch.nn.functional.pad(h.sentence(16), (4, 0), value=h.PAD)  # padding does not count
    exact = log_probs(model, h.sentence(16))
    assert h.difference(log_probs(model, wide)[:, 4:], exact) <= h.TOLERANCE


@h.every_case
def test_every_parameter_gets_a_gradient(encoder, blocks, target):
    model = h.randomise_positions(roberta(encoder, blocks, target)).train()
    forcing.assert_losses_reach(model, lambda: loss_of(model, h.source_batch()))


@h.every_mechanism
@pytest.mark.parametrize("options", [{"encoder_layerdrop": 0.5}, {"checkpoint_activations": True}])
def test_layerdrop_and_activation_checkpointing(encoder, blocks, target, options):
    model = h.randomise_positions(roberta(encoder, blocks, target, dropout=0.0, **options)).train()
    plain = h.randomise_positions(roberta(encoder, blocks, target, dropout=0.0)).train()
    plain.load_state_dict(model.state_dict())
    losses, slopes = [], []
    for one in (model, plain):
        torch.manual_seed(1)  # with this seed a block is dropped
        loss = loss_of(one, h.source_batch())
        loss.backward()
        assert loss.isfinite()
        losses.append(float(loss.detach()))
        slopes.append({n: p.grad for n, p in one.named_parameters() if p.grad is not None})
    if "checkpoint_activations" in options:
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
        assert slopes[0].keys() == slopes[1].keys()
        assert all(
            h.difference(slopes[0][name], slope) <= 1e-5 for name, slope in slopes[1].items()
        )
    else:
        assert losses[0] != losses[1]
    tokens = h.source_batch()
    assert h.difference(log_probs(model.eval(), tokens), log_probs(plain.eval(), tokens)) == 0
