"""CoPE beside x-transformers', whose causal form an encoder takes once on each side."""

import pytest
import torch
from helpers import TOLERANCE, build, difference, log_probs, position_parameters, sentence
from one_attention import (
    LENGTH,
    SIDES,
    attended,
    causal_mask,
    heads_of,
    logits,
    stack_of,
    stream,
    written_out,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.transformer.masks import additive_mask

every_side = pytest.mark.parametrize("side", SIDES)
HEAD, HEADS = 16, 4


def one_side(vectors, q, scores):
    """x-transformers' term for keys before the query, [B, H, T, T]; scores hide all others."""
    package = pytest.importorskip("x_transformers.x_transformers")
    oracle = package.CoPE(HEAD, HEADS, len(vectors))
    oracle.pos_emb.data.copy_(vectors)
    return oracle(q, scores)


def oracles_term(stack, q, k, mask=0.0):
    """The term of both sides; ``mask`` hides padding."""
    vectors = stack.layers[0].positions.vectors.detach().split(stack.layers[0].positions.count)
    scores, length = q @ k.transpose(2, 3) / HEAD**0.5 + mask, q.size(2)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    before = one_side(vectors[0], q, scores.masked_fill(hidden, float("-inf")))
    if len(vectors) == 1:
        return before
    mirrored = scores.flip(2, 3).masked_fill(hidden, float("-inf"))
    after = one_side(vectors[1], q.flip(2), mirrored).flip(2, 3)
    return torch.where(hidden, after, before)


@every_side
@pytest.mark.parametrize("padded", [[0, 1, 2], [11, 12], [0, 5, 6, 9, 12]], ids=str)
@torch.no_grad()
def test_padding_is_not_counted(side, padded):
    stack, x = stack_of(side, "cope", cope_positions=5), stream()
    is_padding = torch.zeros(x.size(1), LENGTH, dtype=torch.bool)
    is_padding[1, padded] = True
    mask = additive_mask(is_padding[:, None, None], x.dtype)
    q, k, v = heads_of(stack, x)
    term = oracles_term(stack, q, k, mask)
    expected = written_out(stack, q, k, v, term + mask)[1]
    of = Tokens.read(is_padding)
    both = {"mask": causal_mask(stack) + mask}
    by_argument = {"mask": causal_mask(stack), "key_padding_mask": is_padding}
    for how in (both, by_argument):
        found = attended(stack, x, of, **how)[0]
        assert difference(found[~is_padding.T], expected[~is_padding.T]) <= 1e-5
    real = x[~is_padding[1], 1:]
    alone = attended(stack, real)[0]
    assert difference(alone[:, 0], expected[~is_padding[1], 1]) <= 1e-5


@torch.no_grad()
def test_a_gate_that_is_open_counts_tokens_and_a_closed_one_none():
    stack, x = stack_of("encoder", "cope", cope_positions=20), stream()
    part, attention = stack.layers[0].positions, stack.layers[0].self_attn
    attention.k_proj.weight.zero_()
    q = heads_of(stack, x)[0]
    for size, count in ((1e4, 1), (-1e4, 0)):
        # One channel of every query is 1, the keys have nothing else: logits of +-2500.
        attention.q_proj.weight[::HEAD], attention.q_proj.bias[::HEAD] = 0.0, 1.0
        attention.k_proj.bias.zero_()
        attention.k_proj.bias[::HEAD] = size
        q = heads_of(stack, x)[0]
        distances = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        rows = count * (distances.abs() + 1) + 20 * (distances < 0)
        expected = torch.einsum("bhtd,tsd->bhts", q, part.vectors[rows]) + size / HEAD**0.5
        assert difference(logits(stack, x), expected) <= 1e-3


def test_it_starts_as_no_positions_and_has_the_parameters_of_its_vectors():
    model, none = (
        build(name, no_token_positional_embeddings=True, **extra).eval()
        for name, extra in (("cope", {"target": "attention"}), ("none", {}))
    )
    none.load_state_dict(model.state_dict(), strict=False)
    assert not any(p.any() for p in position_parameters(model))
    batch = sentence(9), sentence(7)
    assert difference(log_probs(model, *batch), log_probs(none, *batch)) <= TOLERANCE
    added = added_parameters("floater_transformer", "cope", "all")
    assert sum(added.values()) == 73_728
    assert added["encoder.layers.0.positions.vectors"] == 2 * 64 * 64
    few = added_parameters("floater_transformer", "cope", "input", cope_positions=16)
    assert sum(few.values()) == 3 * 16 * 64


@every_side
@torch.no_grad()
def test_half_precision_counts_in_float32(side):
    part = stack_of(side, "cope").layers[0].positions
    open_ = torch.full((1, HEADS, 400, HEAD), 10.0, dtype=torch.bfloat16)
    distances = torch.arange(400)[:, None] - torch.arange(400)
    counted = part._counted(open_, open_, None, distances[None, None])
    seen = distances >= (0 if side == "decoder" else -400)
    assert torch.equal(counted[0, 0][seen], distances[seen].abs() + 1.0)  # bfloat16 ends at 256


@every_side
def test_nan_among_the_logits_is_no_index(side):
    """It comes out, as elsewhere, so that mixed precision skips the update."""
    stack, x = stack_of(side, "cope"), stream()
    x[2, 0, 0] = float("nan")
    output = attended(stack, x)[0]
    assert output[-1, 0].isnan().all() and output[:, 1:].isfinite().all()
    output.sum().backward()
