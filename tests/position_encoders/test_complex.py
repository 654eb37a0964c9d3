"""Complex order, beside torch.polar sentence by sentence; whose frequencies, and how many."""

import pytest
import torch
from helpers import (
    PAD,
    VOCABULARY,
    build,
    difference,
    log_probs,
    position_parameters,
    randomise_positions,
    raw_log_probs,
    source_batch,
    target_batch,
    visible,
)
from stage_oracles import largest_difference

from fairseq_floater.position_encoders.transforms import Tokens


def sinusoids(channels):
    return torch.tensor([10000 ** (-2 * c / channels) for c in range(channels // 2)])


@pytest.mark.parametrize("omega", ["word", "shared", "fixed"])
@pytest.mark.parametrize("blocks", ["all", "input"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_block_gets_what_polar_gives_each_sentence(omega, blocks, left):
    model = visible("complex", blocks, "stage", complex_omega=omega)

    def oracle(stack, block, words, before):
        channels = before.size(1)
        if omega == "fixed":
            frequencies = sinusoids(channels)
        else:
            frequencies = stack.positions.omega[words if omega == "word" else 0]
        places = torch.arange(len(words))[:, None]
        numbers = torch.complex(before[:, 0::2], before[:, 1::2])
        turned = torch.polar(numbers.abs(), frequencies * places + numbers.angle())
        return torch.stack([turned.real, turned.imag], dim=2).flatten(1)

    batch = source_batch(left), target_batch(left)
    assert largest_difference(model, *batch, oracle) <= 1e-5


@pytest.mark.parametrize(("omega", "count"), [("word", VOCABULARY), ("shared", 1), ("fixed", 0)])
def test_frequencies_start_as_the_sinusoids(omega, count):
    model = build("complex", target="stage", complex_omega=omega)
    rows = [stack.positions.omega for stack in (model.encoder, model.decoder)]
    if not count:
        assert rows == [None, None] and position_parameters(model) == []
        return
    for row in rows:
        assert row.shape == (count, 32) and row.requires_grad
        assert difference(row.detach(), sinusoids(64).expand(count, -1)) < 1e-6


@pytest.mark.parametrize("omega", ["word", "shared"])
@pytest.mark.parametrize("one_dictionary", [True, False])
def test_one_dictionary_has_one_set_of_frequencies(omega, one_dictionary):
    """Also after loading and moving; each side's gradient reaches it."""
    shares = {"share_all_embeddings": True} if one_dictionary else {}
    model = build("complex", target="stage", complex_omega=omega, dropout=0.0, **shares)
    model.double().load_state_dict(model.state_dict())
    sides = [stack.positions.omega for stack in (model.encoder, model.decoder)]
    assert (sides[0] is sides[1]) == one_dictionary
    assert len(position_parameters(model)) == 2
    assert len({id(p) for p in position_parameters(model)}) == 2 - one_dictionary
    batch = source_batch(), target_batch()
    before = log_probs(model.eval(), *batch)
    with torch.no_grad():
        model.decoder.positions.omega.mul_(2)
    changed = difference(log_probs(model, *batch), before) > 1e-3
    with torch.no_grad():
        model.encoder.positions.omega.mul_(0.5)
    assert changed and (difference(log_probs(model, *batch), before) == 0) == one_dictionary


def test_words_without_positions_of_their_own_keep_their_gradient_to_themselves():
    """A word's frequencies learn from that word alone."""
    model = randomise_positions(build("complex", "input", "stage", dropout=0.0)).train()
    source = source_batch()
    raw_log_probs(model, source, target_batch()).square().mean().backward()
    touched = model.encoder.positions.omega.grad.abs().sum(1) > 0
    later = source[source.ne(PAD) & source.ne(PAD).cumsum(1).gt(1)].unique()
    assert touched.nonzero().flatten().tolist() == later.tolist()


def test_a_stretched_token_is_turned_as_far_as_the_place_it_stands_for(monkeypatch):
    options = {"dropout": 0.0, "position_stretch": "0.5:2.5"}
    model = randomise_positions(build("complex", target="stage", **options)).train()
    monkeypatch.setattr(
        "fairseq_floater.position_encoders.warp.drawn_factors",
        lambda law, sentences, device: torch.full((sentences, 1), 2.0),
    )
    batch = source_batch(), target_batch()
    with torch.no_grad():
        stretched = raw_log_probs(model, *batch)
        for parameter in position_parameters(model):
            parameter.mul_(2)
    real = batch[1].ne(PAD)
    assert difference(log_probs(model.eval(), *batch)[real], stretched[real]) <= 2e-5


@pytest.mark.parametrize("omega", ["word", "shared", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
def test_angles_far_away_are_computed_in_float32_and_cast_last(omega, dtype):
    model = visible("complex", "all", "stage", complex_omega=omega)
    words = torch.arange(3000)[None] % VOCABULARY
    tokens = Tokens.read(torch.zeros_like(words).bool())
    with torch.no_grad():
        rounded = model.to(dtype).encoder.positions.prepare(words, tokens, dtype)
        exact = model.float().encoder.positions.prepare(words, tokens, torch.float32)
    for actual, expected in zip(rounded, exact, strict=True):
        assert actual.dtype == dtype
        assert torch.equal(actual, expected.to(dtype))
