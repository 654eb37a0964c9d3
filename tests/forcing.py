"""What holds for every encoder under every option, as one line of a test. Not a test file."""

import torch
from helpers import (
    PAD,
    TOLERANCE,
    difference,
    log_probs,
    sentence,
    shifted,
    source_batch,
    stepwise_log_probs,
)


def assert_padding_moves_nothing(model, source, target_in, tolerance=TOLERANCE):
    """A sentence alone is the sentence in a padded batch."""
    for s, t, row in zip(source, target_in, log_probs(model, source, target_in)):
        alone = log_probs(model, s[s.ne(PAD)][None], t[t.ne(PAD)][None])[0]
        assert difference(row[t.ne(PAD)], alone) <= tolerance


def assert_steps_equal_one_pass(model, source, target_in, tolerance=TOLERANCE):
    """Decoding is teacher forcing."""
    real = target_in.ne(PAD)
    full, steps = (run(model, source, target_in) for run in (log_probs, stepwise_log_probs))
    assert difference(full[real], steps[real]) <= tolerance


def assert_beams_keep_their_sentence(model, beam, left=True):
    """Beams of one sentence change places; later a whole sentence is finished and leaves.

    With ``beam`` 1 each beam has a source of its own, with 2 both of a sentence share one.
    """
    sentences = source_batch(left)
    source = sentences.repeat_interleave(2, dim=0)
    target_in = torch.cat([shifted(sentence(10, seed=i)) for i in range(6)])
    orders = {3: [1, 0, 2, 2, 5, 4], 5: [0, 1, 5, 4], 8: [1, 1, 3, 2]}
    surviving = torch.arange(6)
    for order in orders.values():
        surviving = surviving[torch.tensor(order)]
    full = log_probs(model, source[surviving], target_in[surviving])
    given = {1: source, 2: sentences}[beam]
    assert difference(full, stepwise_log_probs(model, given, target_in, orders, beam)) <= TOLERANCE
