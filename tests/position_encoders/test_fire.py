"""FIRE beside its formula, written out with a torch network and numpy."""

import numpy as np
import pytest
import torch
from distance_terms import Largest
from helpers import (
    build,
    difference,
    position_parameters,
)
from one_attention import (
    LENGTH,
    SIDES,
    bias,
    causal_mask,
    stack_of,
    tokens,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.transforms import At

every_side = pytest.mark.parametrize("side", SIDES)


def stack_with(side, threshold=4, multiple=1.0, c=0.3, seed=7):
    """A stack whose f bends within its input's range."""
    stack = stack_of(side, "fire", fire_threshold=threshold)
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


def by_formula(stack, places):
    """f of the shares, [H, T, T], entry by entry; ``places`` in tokens."""
    encoder = stack.positions
    c, multiple = float(encoder.c.detach()), float(encoder.threshold.detach())
    limit = abs(multiple * encoder.spec.options["fire_threshold"])
    shares = np.zeros((len(places), len(places)))
    for i, at in enumerate(places):
        for j, other in enumerate(places):
            most = max(limit, at, other)
            shares[i, j] = np.log(abs(c * (at - other)) + 1) / (np.log(abs(c * most) + 1) + 1e-6)
            shares[i, j] *= np.sign(at - other)
    f = torch.nn.Sequential(encoder.inner, torch.nn.ReLU(), encoder.outer)
    return f(torch.from_numpy(shares).float()[..., None]).permute(2, 0, 1)


@every_side
@torch.no_grad()
def test_places_may_lie_before_the_first_token(side):
    """Three tokens before it, in quarters: there distances can exceed L, and shares 1."""
    stack, rows = stack_with(side, threshold=2), 5 * torch.arange(LENGTH)[None]
    at = At(rows, rows, 5 * LENGTH, rows_per_token=4, rows_before=12)
    found = stack.positions.logit_bias(at, [], torch.float32)[0]
    expected = by_formula(stack, (rows[0].numpy() - 12) / 4)
    seen = causal_mask(stack) == 0
    assert difference(found[:, seen], expected[:, seen]) <= 1e-5


@pytest.mark.parametrize("second", [None, 0.0, -1.0], ids=["some-turn", "all-but-one", "all-turn"])
def test_the_pieces_of_f_have_its_values_and_gradients(second):
    encoder = stack_with("encoder").positions
    if second is not None:  # the units turn between -1 and 1; of weight and bias 0 one never does
        with torch.no_grad():
            encoder.inner.weight[:3] = torch.tensor([[1.0], [second], [2.0]])
            size = encoder.inner.weight[:, 0].abs()
            encoder.inner.bias.copy_(torch.linspace(-0.9, 0.9, 32) * size)
    shares = torch.linspace(-3.99, 3.99, 800).requires_grad_()
    f = torch.nn.Sequential(encoder.inner, torch.nn.ReLU(), encoder.outer)
    seeds = torch.randn(800, 4, generator=torch.Generator().manual_seed(1))
    of = [shares, *encoder.inner.parameters(), *encoder.outer.parameters()]
    assert difference(encoder.of_shares(shares).detach(), f(shares[:, None]).detach()) <= 1e-5
    found = torch.autograd.grad((encoder.of_shares(shares) * seeds).sum(), of)
    expected = torch.autograd.grad((f(shares[:, None]) * seeds).sum(), of)
    for one, other in zip(found, expected):
        assert difference(one, other) <= 1e-4 * (1 + float(other.abs().max()))


@every_side
def test_every_number_is_learned(side):
    stack = stack_with(side, threshold=8)
    bias(stack, tokens(24)).square().sum().backward()
    for parameter in stack.positions.parameters():
        assert float(parameter.grad.abs().max()) > 0


@every_side
@torch.no_grad()
def test_past_the_threshold_the_first_token_is_a_whole_sentence_away(side):
    stack = stack_with(side, threshold=16)
    below, at, past = (bias(stack, tokens(n + 1))[0, :, n, 0] for n in (8, 16, 399))
    assert difference(at, past) <= 1e-5
    assert difference(below, at) > 1e-3


@every_side
@torch.no_grad()
def test_f_takes_less_room_than_its_units_would(side):
    stack, count = stack_with(side), 200
    with Largest() as largest:
        bias(stack, tokens(count))
    assert largest.elements <= 2 * 4 * count**2 < 32 * count**2


def test_parameters_and_their_start():
    added = added_parameters("floater_transformer", "fire", "all")
    assert sum(added.values()) == 660
    assert added["encoder.positions.outer.weight"] == 256
    model = build("fire", target="attention")
    for stack in (model.encoder, model.decoder):
        assert float(stack.positions.c.detach()) == pytest.approx(0.1)
        assert float(stack.positions.threshold.detach()) == 1
    assert len(position_parameters(model)) == 12
