"""Complex order: the number, sharing and precision of its frequencies."""

import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders.transforms import Tokens


def sinusoids(channels):
    return torch.tensor([10000 ** (-2 * c / channels) for c in range(channels // 2)])


@pytest.mark.parametrize(("omega", "count"), [("word", h.VOCABULARY), ("shared", 1), ("fixed", 0)])
def test_frequencies_start_as_the_sinusoids(omega, count):
    model = h.build("complex", target="stage", complex_omega=omega)
    rows = [stack.positions.omega for stack in (model.encoder, model.decoder)]
    if not count:
        assert rows == [None, None] and h.position_parameters(model) == []
        return
    for row in rows:
        assert row.shape == (count, 32) and row.requires_grad
        assert h.difference(row.detach(), sinusoids(64).expand(count, -1)) < 1e-6


@pytest.mark.parametrize("omega", ["word", "shared"])
@pytest.mark.parametrize("one_dictionary", [True, False])
def test_one_dictionary_has_one_set_of_frequencies(omega, one_dictionary):
    """Also after a change of dtype and loading; a change on one side reaches both."""
    shares = {"share_all_embeddings": True} if one_dictionary else {}
    model = h.build("complex", target="stage", complex_omega=omega, dropout=0.0, **shares)
    model.double().load_state_dict(model.state_dict())
    sides = [stack.positions.omega for stack in (model.encoder, model.decoder)]
    assert (sides[0] is sides[1]) == one_dictionary
    assert len(h.position_parameters(model)) == 2
    assert len({id(p) for p in h.position_parameters(model)}) == 2 - one_dictionary
    batch = h.source_batch(), h.target_batch()
    before = h.log_probs(model.eval(), *batch)
    with torch.no_grad():
        model.decoder.positions.omega.mul_(2)
    changed = h.difference(h.log_probs(model, *batch), before) > 1e-3
    with torch.no_grad():
        model.encoder.positions.omega.mul_(0.5)
    assert changed and (h.difference(h.log_probs(model, *batch), before) == 0) == one_dictionary


def test_words_without_positions_of_their_own_keep_their_gradient_to_themselves():
    """A word's frequencies learn from that word alone."""
    model = h.randomise_positions(h.build("complex", "input", "stage", dropout=0.0)).train()
    source = h.source_batch()
    h.raw_log_probs(model, source, h.target_batch()).square().mean().backward()
    touched = model.encoder.positions.omega.grad.abs().sum(1) > 0
    later = source[source.ne(h.PAD) & source.ne(h.PAD).cumsum(1).gt(1)].unique()
    assert touched.nonzero().flatten().tolist() == later.tolist()


@pytest.mark.parametrize("omega", ["word", "shared", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
def test_angles_far_away_are_computed_in_float32_and_cast_last(omega, dtype):
    model = h.visible("complex", "all", "stage", complex_omega=omega)
    words = torch.arange(3000)[None] % h.VOCABULARY
    tokens = Tokens.read(torch.zeros_like(words).bool())
    with torch.no_grad():
        rounded = model.to(dtype).encoder.positions.prepare(words, tokens, dtype)
        exact = model.float().encoder.positions.prepare(words, tokens, torch.float32)
    for actual, expected in zip(rounded, exact, strict=True):
        assert actual.dtype == dtype
        assert torch.equal(actual, expected.to(dtype))
