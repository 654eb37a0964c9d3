"""FIRE's network as a piecewise linear function, and its threshold."""

import helpers as h
import one_attention as one
import pytest
import torch


def stack_with(side, threshold=4, multiple=1.0, c=0.3, seed=7):
    """A stack whose network f has kinks within the range of its input."""
    stack = one.stack_of(side, "fire", fire_threshold=threshold)
    encoder, generator = stack.positions, torch.Generator().manual_seed(seed)
    with torch.no_grad():
        encoder.c.fill_(c)
        encoder.threshold.fill_(multiple)
        for layer in (encoder.inner, encoder.outer):
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        encoder.inner.weight[:3] = torch.tensor([[0.0], [0.0], [1e-9]])
        encoder.inner.bias[0], encoder.inner.bias[1], encoder.inner.bias[4:6] = 0.7, 0.0, 0.0
    return stack


@pytest.mark.parametrize("second", [None, 0.0, -1.0], ids=["some-turn", "all-but-one", "all-turn"])
def test_the_pieces_of_f_have_its_values_and_gradients(second):
    encoder = stack_with("encoder").positions
    if second is not None:  # kinks lie between -1 and 1; a unit of weight 0 and bias 0 has none
        with torch.no_grad():
            encoder.inner.weight[:3] = torch.tensor([[1.0], [second], [2.0]])
            size = encoder.inner.weight[:, 0].abs()
            encoder.inner.bias.copy_(torch.linspace(-0.9, 0.9, 32) * size)
    shares = torch.linspace(-3.99, 3.99, 800).requires_grad_()
    f = torch.nn.Sequential(encoder.inner, torch.nn.ReLU(), encoder.outer)
    seeds = torch.randn(800, 4, generator=torch.Generator().manual_seed(1))
    of = [shares, *encoder.inner.parameters(), *encoder.outer.parameters()]
    assert h.difference(encoder.of_shares(shares).detach(), f(shares[:, None]).detach()) <= 1e-5
    found = torch.autograd.grad((encoder.of_shares(shares) * seeds).sum(), of)
    expected = torch.autograd.grad((f(shares[:, None]) * seeds).sum(), of)
    for actual, wanted in zip(found, expected):
        assert h.difference(actual, wanted) <= 1e-4 * (1 + float(wanted.abs().max()))


@one.every_side
@torch.no_grad()
def test_past_the_threshold_the_first_token_is_a_whole_sentence_away(side):
    stack = stack_with(side, threshold=16)
    below, at, past = (one.bias(stack, one.tokens(n + 1))[0, :, n, 0] for n in (8, 16, 399))
    assert h.difference(at, past) <= 1e-5
    assert h.difference(below, at) > 1e-3


def test_it_starts_as_in_the_paper():
    model = h.build("fire", target="attention")
    for stack in (model.encoder, model.decoder):
        assert float(stack.positions.c.detach()) == pytest.approx(0.1)
        assert float(stack.positions.threshold.detach()) == 1
