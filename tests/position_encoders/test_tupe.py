"""TUPE's bias, which is computed once for all blocks."""

import helpers as h

HEADS = 2  # of the tiny model


def tupe(**options):
    return h.visible("tupe", target="attention", **options)


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
