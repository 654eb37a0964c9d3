"""TUPE's logits beside sums written out by matrices: no package has them to compare with."""

import pytest
import torch
from forcing import assert_padding_moves_nothing, assert_steps_equal_one_pass
from helpers import (
    PAD,
    TOLERANCE,
    difference,
    log_probs,
    loss_of,
    sentence,
    shifted,
    signals,
    source_batch,
    target_batch,
    visible,
)

from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS

HEADS = 2  # of the tiny model
LEARNED = {"tupe_positions": "learned", "max_source_positions": 16, "max_target_positions": 16}


def tupe(**options):
    return visible("tupe", target="attention", **options)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_learned_positions_keep_the_contract(left):
    model = tupe(**LEARNED)
    batch = source_batch(left), target_batch()
    assert_steps_equal_one_pass(model, *batch)
    assert_padding_moves_nothing(model, *batch)
    loss_of(model.train(), *batch).backward()
    for _, _, encoder in signals(model):
        used = encoder.positions.grad.abs().sum(1) > 0
        assert used.tolist() == [i < (12 if encoder.spec.causal else 11) for i in range(16)]


def test_learned_positions_end_and_the_sinusoid_does_not():
    assert tupe().max_positions() == (UNLIMITED_POSITIONS, UNLIMITED_POSITIONS)
    model = tupe(**LEARNED)
    assert model.max_positions() == (16, 16)
    source, target_in = sentence(16), shifted(sentence(16))
    expected = log_probs(model, source, target_in)
    wide = [torch.nn.functional.pad(x, (4, 0), value=PAD) for x in (source, target_in)]
    assert difference(log_probs(model, *wide)[:, 4:], expected) <= TOLERANCE
    words = "source sequence of 17 tokens.*16 positions.*--max-source-positions"
    with pytest.raises(ValueError, match=words):
        log_probs(model, sentence(17), target_in)


def test_the_bias_is_computed_once_for_all_blocks(monkeypatch):
    model = tupe()
    calls = []
    for _, _, encoder in signals(model):
        logit_bias = encoder.logit_bias
        monkeypatch.setattr(
            encoder, "logit_bias", lambda *a, f=logit_bias: calls.append(f(*a)) or calls[-1]
        )
    log_probs(model, source_batch(), target_batch())
    assert [bias.shape for bias in calls] == [(3, HEADS, 11, 11), (3, HEADS, 12, 12)]
