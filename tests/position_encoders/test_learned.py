"""How far the hierarchy of learned rows reaches (Su 2020)."""

import helpers as h
import pytest


def test_the_square_of_the_trained_rows_is_the_longest_sentence():
    limits = {"max_source_positions": 16, "max_target_positions": 16}
    model = h.visible("learned", learned_hierarchy=5, **limits)
    assert model.max_positions() == (25, 25)
    fits, long = h.sentence(25), h.sentence(26)
    full = h.log_probs(model, fits, h.shifted(fits))
    assert h.difference(h.stepwise_log_probs(model, fits, h.shifted(fits)), full) <= 2e-5
    for source, target_in, side in ((long, fits, "source"), (fits, long, "target")):
        words = (
            rf"{side} sequence of 26 tokens.*the 25 positions of .*learned; .*--learned-hierarchy "
        )
        with pytest.raises(ValueError, match=words):
            h.log_probs(model, source, target_in)
