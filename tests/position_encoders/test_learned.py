"""The hierarchy of learned rows, written out digit by digit (Su 2020)."""

import pytest
import torch
from helpers import (
    difference,
    log_probs,
    parts,
    sentence,
    shifted,
    signals,
    stepwise_log_probs,
    visible,
)

from fairseq_floater.position_encoders.transforms import Places


def tables_and_weights(model, rows):
    """Of every block of both stacks: its rows [N, C] and what it owns [n, C]."""
    for stack, name, signal in signals(model):
        table = signal.rows(Places(rows), parts(stack, name)).detach()
        for n, part in enumerate(parts(stack, name)):
            yield table[:, 0, n], part.weight.detach()[:, 0]


@pytest.mark.parametrize("alpha", [0.4, 0.9])
@pytest.mark.parametrize("combine", ["add", "multiply"])
def test_rows_are_written_out(alpha, combine):
    options = {"learned_hierarchy_alpha": alpha, "position_combine": combine}
    model = visible("learned", learned_hierarchy=7, **options)
    pairs = list(tables_and_weights(model, 49))
    assert len(pairs) == 4
    for rows, p in pairs:
        assert p.shape == (7, 64)
        u = [(p[r] - alpha * p[0]) / (1 - alpha) for r in range(7)]
        for i in range(49):
            high, low = divmod(i, 7)
            assert difference(rows[i], alpha * u[high] + (1 - alpha) * u[low]) < 1e-5
        assert torch.equal(rows[:7], p)
        assert len(rows.unique(dim=0)) == 49


def test_the_square_of_the_trained_rows_is_the_longest_sentence():
    limits = {"max_source_positions": 16, "max_target_positions": 16}
    model = visible("learned", learned_hierarchy=5, **limits)
    assert model.max_positions() == (25, 25)
    fits, long = sentence(25), sentence(26)
    full = log_probs(model, fits, shifted(fits))
    assert difference(stepwise_log_probs(model, fits, shifted(fits)), full) <= 2e-5
    for source, target_in, side in ((long, fits, "source"), (fits, long, "target")):
        words = (
            rf"{side} sequence of 26 tokens.*the 25 positions of .*learned; .*--learned-hierarchy "
        )
        with pytest.raises(ValueError, match=words):
            log_probs(model, source, target_in)
