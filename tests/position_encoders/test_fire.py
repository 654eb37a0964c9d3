"""FIRE beside its formula, written out with a torch network and numpy."""

import numpy as np
import pytest
import torch
from distance_terms import Largest
from forcing import assert_padding_moves_nothing
from helpers import (
    build,
    difference,
    position_parameters,
    source_batch,
    target_batch,
    visible,
)
from one_attention import (
    LENGTH,
    SIDES,
    attended,
    bias,
    causal_mask,
    heads_of,
    logits,
    logits_differ_by,
    stack_of,
    step_by_step,
    stream,
    stretched,
    tokens,
    written_out,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.transforms import At

every_side = pytest.mark.parametrize("side", SIDES)
NUMBERS = pytest.mark.parametrize(
    ("threshold", "multiple", "c"), [(4, 1.0, 0.1), (16, -0.3, 2.0), (16, 3.0, -0.7), (1, 0.1, 0.4)]
)


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
@NUMBERS
@torch.no_grad()
def test_attention_is_that_with_the_function_written_out(side, threshold, multiple, c):
    stack, x = stack_with(side, threshold, multiple, c), stream()
    biases = by_formula(stack, np.arange(LENGTH))
    seen = causal_mask(stack) == 0
    assert difference(bias(stack)[0][:, seen], biases[:, seen]) <= 1e-5
    scores, output = written_out(stack, *heads_of(stack, x), biases)
    assert logits_differ_by(stack, logits(stack, x), scores) <= 2e-5
    for found in (attended(stack, x)[0], attended(stack, x, need_weights=True)[0]):
        assert difference(found, output) <= 1e-5
    if side == "decoder":
        assert difference(step_by_step(stack, x)[0], output) <= 1e-5


@every_side
@torch.no_grad()
def test_stretched_biases_are_those_of_real_places(side):
    stack, factors = stack_with(side), (0.5, 1.3, 2.5)
    seen = causal_mask(stack) == 0
    for factor, found in zip(factors, bias(stack, stretched(*factors))):
        expected = by_formula(stack, (4 * factor * np.arange(LENGTH)).round() / 4)
        assert difference(found[:, seen], expected[:, seen]) <= 1e-5


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


def test_padding_moves_no_position():
    model = visible("fire", target="attention", fire_threshold=3)
    for left in (True, False):
        assert_padding_moves_nothing(model, source_batch(left), target_batch(), 2e-5)


def test_parameters_and_their_start():
    added = added_parameters("floater_transformer", "fire", "all")
    assert sum(added.values()) == 660
    assert added["encoder.positions.outer.weight"] == 256
    model = build("fire", target="attention")
    for stack in (model.encoder, model.decoder):
        assert float(stack.positions.c.detach()) == pytest.approx(0.1)
        assert float(stack.positions.threshold.detach()) == 1
    assert len(position_parameters(model)) == 12


@pytest.mark.parametrize("threshold", [0, -16])
def test_a_threshold_below_one_is_refused(threshold):
    words = f"`--fire-threshold` must be at least 1, but is {threshold} instead"
    with pytest.raises(ValueError, match=words):
        build("fire", target="attention", fire_threshold=threshold)
