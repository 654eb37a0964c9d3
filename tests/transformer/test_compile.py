"""torch.compile takes every encoder."""

from functools import cache, partial

import pytest
import torch
from helpers import build, difference, randomise_positions, sentence
from torch._dynamo.utils import counters

from fairseq_floater.position_encoders import POSITION_ENCODERS, rope

SIZES = {
    "encoder_embed_dim": 8,
    "decoder_embed_dim": 8,
    "encoder_ffn_embed_dim": 8,
    "encoder_layers": 1,
    "dropout": 0.0,
}


def check_compiled(encoder, *lengths):
    """Compare in training mode, where every table is computed. Return the number of graphs."""
    torch._dynamo.reset()
    counters.clear()
    target = POSITION_ENCODERS[encoder].targets[0]
    stack = randomise_positions(build(encoder, "all", target, **SIZES)).encoder
    compiled = torch.compile(stack, backend="eager")
    for length in lengths:
        output, expected = (s(sentence(length))["encoder_out"][0] for s in (compiled, stack))
        assert difference(output, expected) <= 1e-6
        with pytest.MonkeyPatch.context() as patch:  # the compiler's formula turns pairs
            patch.setattr(rope, "_are_complex", lambda *_: False)
            assert torch.equal(output, stack(sentence(length))["encoder_out"][0])
    return counters["stats"]["unique_graphs"]


graphs_without_positions = cache(partial(check_compiled, "none"))


# Other encoders only in the slow test: compiling one takes seconds.
@pytest.mark.parametrize("encoder", ["conv", "cope", "floater", "rope", "t5", "token-rnn", "xl"])
def test_a_compiled_stack_computes_the_same(encoder):
    graphs = check_compiled(encoder, 5)
    # A recurrence over tokens runs between blocks.
    assert graphs == graphs_without_positions(5) or encoder == "token-rnn"


@pytest.mark.slow
@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
def test_a_compiled_stack_takes_another_length(encoder):
    graphs = check_compiled(encoder, 5, 7)
    assert graphs == graphs_without_positions(5, 7) or encoder == "token-rnn"
