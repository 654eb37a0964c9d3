"""NEZHA's sinusoids of distances: the authors' code, far distances, and the table's length."""

import helpers as h
import one_attention as one
import pytest
import torch
from attention_oracles import sinusoid

from fairseq_floater.position_encoders.transforms import Places

HEAD = 16


@torch.no_grad()
def test_far_distances_are_exact():
    """Distances are j - i, negative for keys before the query; float16 cannot represent 4,999."""
    encoder = one.stack_of("decoder", "nezha", nezha_clip=0).positions
    far = encoder.rows(Places(5000), [])[-1].flatten()
    assert h.difference(far, sinusoid(torch.tensor(-4_999), HEAD)) < 1e-6


@pytest.mark.parametrize(("side", "sides"), [("encoder", 2), ("decoder", 1)])
@torch.no_grad()
def test_a_clip_bounds_the_table(side, sides):
    for clip, rows in ((5, 6), (0, 300)):
        stack = one.stack_of(side, "nezha", nezha_clip=clip)
        at, parts = one.tokens(300).at(True), h.parts(stack, "positions")
        _, keys, values = stack.positions.prepare(at, parts, torch.float32)[0]
        assert keys is values and len(keys) == rows * sides
