"""TUPE's limits of length, and its bias, which is computed once for all blocks."""

import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS

HEADS = 2  # of the tiny model
LEARNED = {"tupe_positions": "learned", "max_source_positions": 16, "max_target_positions": 16}


def tupe(**options):
    return h.visible("tupe", target="attention", **options)


def test_learned_positions_end_and_the_sinusoid_does_not():
    assert tupe().max_positions() == (UNLIMITED_POSITIONS, UNLIMITED_POSITIONS)
    model = tupe(**LEARNED)
    assert model.max_positions() == (16, 16)
    source, target_in = h.sentence(16), h.shifted(h.sentence(16))
    expected = h.log_probs(model, source, target_in)
    wide = [torch.nn.functional.pad(x, (4, 0), value=h.PAD) for x in (source, target_in)]
    assert h.difference(h.log_probs(model, *wide)[:, 4:], expected) <= h.TOLERANCE
    words = "source sequence of 17 tokens.*16 positions.*--max-source-positions"
    with pytest.raises(ValueError, match=words):
        h.log_probs(model, h.sentence(17), target_in)


def test_the_bias_is_computed_once_for_all_blocks(monkeypatch):
    model = tupe()
    calls = []
    for _, _, encoder in h.signals(model):
        logit_bias = encoder.logit_bias
        monkeypatch.setattr(
            encoder, "logit_bias", lambda *a, f=logit_bias: calls.append(f(*a)) or calls[-1]
        )
    h.log_probs(model, h.source_batch(), h.target_batch())
    assert [bias.shape for bias in calls] == [(3, HEADS, 11, 11), (3, HEADS, 12, 12)]
