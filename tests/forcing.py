"""Assertions that hold for every encoder under every option. Not a test file."""

import math

import helpers as h
import pytest
import torch


def assert_padding_moves_nothing(model, source, target_in, tolerance=h.TOLERANCE):
    """Check that a sentence alone scores as it does in a padded batch."""
    for s, t, row in zip(source, target_in, h.log_probs(model, source, target_in)):
        alone = h.log_probs(model, s[s.ne(h.PAD)][None], t[t.ne(h.PAD)][None])[0]
        assert h.difference(row[t.ne(h.PAD)], alone) <= tolerance


def assert_steps_equal_one_pass(model, source, target_in, tolerance=h.TOLERANCE):
    """Check that step-by-step decoding gives the log-probabilities of teacher forcing."""
    real = target_in.ne(h.PAD)
    full, steps = (run(model, source, target_in) for run in (h.log_probs, h.stepwise_log_probs))
    assert h.difference(full[real], steps[real]) <= tolerance


def assert_beams_keep_their_sentence(model, beam, left=True):
    """Check decoding while a sentence's beams change places and, later, a whole sentence leaves.

    With ``beam`` 1 each beam has its own source; with 2 the two beams of a sentence share one.
    """
    sentences = h.source_batch(left)
    source = sentences.repeat_interleave(2, dim=0)
    target_in = torch.cat([h.shifted(h.sentence(10, seed=i)) for i in range(6)])
    orders = {3: [1, 0, 2, 2, 5, 4], 5: [0, 1, 5, 4], 8: [1, 1, 3, 2]}
    surviving = torch.arange(6)
    for order in orders.values():
        surviving = surviving[torch.tensor(order)]
    full = h.log_probs(model, source[surviving], target_in[surviving])
    given = {1: source, 2: sentences}[beam]
    assert (
        h.difference(full, h.stepwise_log_probs(model, given, target_in, orders, beam))
        <= h.TOLERANCE
    )


def assert_every_parameter_gets_a_gradient(model):
    """Check it for a batch of end symbols alone too; there the gradient of a position may be zero."""
    end_symbols = torch.full((2, 1), h.EOS)
    assert_losses_reach(
        model, lambda: h.loss_of(model, end_symbols, end_symbols), lambda: h.loss_of(model)
    )


def assert_losses_reach(model, *losses):
    """Check that each loss reaches every parameter, and that the last one moves every position."""
    for loss in losses:
        model.zero_grad()
        loss().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert all(float(p.grad.abs().max()) > 0 for p in h.position_parameters(model))


def assert_same_hypotheses(actual, expected, tolerance=h.TOLERANCE):
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        assert abs(ours["score"] - theirs["score"]) <= tolerance


def assert_ensembles_score_as_one_pass(models):
    """Check that hypotheses do not depend on the batch, and that their scores are those of one pass."""
    source = h.source_batch(lengths=(7, 11, 4))
    together = h.generated(models, source, 10)
    for i, row in enumerate(source):
        row = row[row.ne(h.PAD)][None]
        assert_same_hypotheses(together[4 * i : 4 * i + 4], h.generated(models, row, 10))
        best = together[4 * i]["tokens"][None]
        scores = torch.stack([h.log_probs(m, row, h.shifted(best)) for m in models]).logsumexp(0)
        score = scores.gather(2, best.unsqueeze(2)).mean() - math.log(len(models))
        assert abs(float(score) - float(together[4 * i]["score"])) <= h.TOLERANCE


def assert_same_gradients(model, expected):
    """Check for the loss and gradients of ``expected`` under one seed; ``model`` may have more parameters."""
    (loss, actual), (expected_loss, gradient) = h.gradients(model), h.gradients(expected)
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    assert all(h.difference(actual[name], gradient[name]) <= 1e-6 for name in gradient)
