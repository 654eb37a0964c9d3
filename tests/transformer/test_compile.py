"""torch.compile takes every encoder."""

import pytest
import torch
from helpers import build, randomise_positions, sentence

from fairseq_floater.position_encoders import POSITION_ENCODERS

SIZES = {
    "encoder_embed_dim": 8,
    "decoder_embed_dim": 8,
    "encoder_ffn_embed_dim": 8,
    "encoder_layers": 1,
    "dropout": 0.0,
}


def check_compiled(encoder, *lengths):
    """Compare in training mode, where every table is computed."""
    torch._dynamo.reset()
    target = POSITION_ENCODERS[encoder].targets[0]
    stack = randomise_positions(build(encoder, "all", target, **SIZES)).encoder
    compiled = torch.compile(stack, backend="eager")
    for length in lengths:
        output, expected = (s(sentence(length))["encoder_out"][0] for s in (compiled, stack))
        assert torch.equal(output, expected)


# Other encoders only in the slow test: compiling one takes seconds.
@pytest.mark.parametrize("encoder", ["conv", "cope", "floater", "rope", "t5", "token-rnn", "xl"])
def test_a_compiled_stack_computes_the_same(encoder):
    check_compiled(encoder, 5)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
def test_a_compiled_stack_takes_another_length(encoder):
    check_compiled(encoder, 5, 7)
