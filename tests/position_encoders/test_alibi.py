"""ALiBi's slopes against x-transformers' and Bloom's, and the direction of its biases."""

import helpers as h
import pytest
import torch
from oracles import transformers_module

from fairseq_floater.position_encoders.alibi import slopes


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_those_of_x_transformers_and_bloom(heads):
    ours = torch.tensor(slopes(heads))
    package = pytest.importorskip("x_transformers.x_transformers")
    theirs = package.AlibiPositionalBias(heads=heads).slopes.flatten()
    assert h.difference(ours, theirs) <= 1e-7
    of_bloom = transformers_module("bloom.modeling_bloom").build_alibi_tensor
    one_apart = of_bloom(torch.ones(1, 2), heads, torch.float32)[:, 0]
    assert h.difference(ours, one_apart[:, 1] - one_apart[:, 0]) <= 1e-7


@pytest.mark.parametrize("encoder", ["alibi", "sandwich"])
@pytest.mark.parametrize(
    ("direction", "is_blind"), [("mirror", True), ("offset", False), ("heads", False)]
)
def test_mirror_alone_gives_a_reversed_sentence_the_reversed_encoding(encoder, direction, is_blind):
    model = h.visible(encoder, target="attention", bias_direction=direction)
    source = h.sentence(12)  # the end symbol is reversed too
    with torch.no_grad():
        forward, backward = (
            model.encoder(tokens, src_lengths=torch.tensor([12]))["encoder_out"][0]
            for tokens in (source, source.flip(1))
        )
    change = h.difference(forward, backward.flip(0))
    assert change <= 1e-5 if is_blind else change > 0.01


def test_learned_slopes_start_as_the_fixed_ones():
    learned, fixed = (
        h.build("alibi", target="attention", alibi_slopes=kind) for kind in ("learned", "fixed")
    )
    assert not h.position_parameters(fixed)
    for stack in (learned.encoder, learned.decoder):
        assert torch.equal(stack.positions.slopes.detach(), torch.tensor(slopes(2)))
