"""CoPE against x-transformers' causal form, which an encoder uses once for each direction."""

import one_attention as one
import pytest
import torch
from helpers import difference

from fairseq_floater.position_encoders.cope import Interpolated
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.transformer.masks import additive_mask

HEAD, HEADS = 16, 4


def one_side(vectors, q, scores):
    """x-transformers' term [B, H, T, T] for keys before the query; ``scores`` hides all others."""
    package = pytest.importorskip("x_transformers.x_transformers")
    oracle = package.CoPE(HEAD, HEADS, len(vectors))
    oracle.pos_emb.data.copy_(vectors)
    return oracle(q, scores)


def oracles_term(stack, q, k, mask=0.0):
    """The term for both directions; ``mask`` hides padding."""
    vectors = stack.layers[0].positions.vectors.detach().split(stack.layers[0].positions.count)
    scores, length = q @ k.transpose(2, 3) / HEAD**0.5 + mask, q.size(2)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    before = one_side(vectors[0], q, scores.masked_fill(hidden, float("-inf")))
    if len(vectors) == 1:
        return before
    mirrored = scores.flip(2, 3).masked_fill(hidden, float("-inf"))
    after = one_side(vectors[1], q.flip(2), mirrored).flip(2, 3)
    return torch.where(hidden, after, before)


@one.every_side
@pytest.mark.parametrize("padded", [[0, 1, 2], [11, 12], [0, 5, 6, 9, 12]], ids=str)
@torch.no_grad()
def test_padding_is_not_counted(side, padded):
    stack, x = one.stack_of(side, "cope", cope_positions=5), one.stream()
    is_padding = torch.zeros(x.size(1), one.LENGTH, dtype=torch.bool)
    is_padding[1, padded] = True
    mask = additive_mask(is_padding[:, None, None], x.dtype)
    q, k, v = one.heads_of(stack, x)
    term = oracles_term(stack, q, k, mask)
    expected = one.written_out(stack, q, k, v, term + mask)[1]
    of = Tokens.read(is_padding)
    both = {"mask": one.causal_mask(stack) + mask}
    by_argument = {"mask": one.causal_mask(stack), "key_padding_mask": is_padding}
    for how in (both, by_argument):
        found = one.attended(stack, x, of, **how)[0]
        assert difference(found[~is_padding.T], expected[~is_padding.T]) <= 1e-5
    real = x[~is_padding[1], 1:]
    alone = one.attended(stack, real)[0]
    assert difference(alone[:, 0], expected[~is_padding[1], 1]) <= 1e-5


def test_gradient_of_the_interpolation():
    generator = torch.Generator().manual_seed(3)
    columns = torch.randn(2, 3, 8, dtype=torch.float64, generator=generator)
    places = 5 * torch.rand(
        2, 3, 6, dtype=torch.float64, generator=generator
    )  # also beyond the last of the 4 vectors
    second_side = 4 * torch.randint(2, places.shape, generator=generator)
    inputs = columns.requires_grad_(), places.requires_grad_(), second_side, 4
    assert torch.autograd.gradcheck(Interpolated.apply, inputs)


@one.every_side
@torch.no_grad()
def test_half_precision_counts_in_float32(side):
    part = one.stack_of(side, "cope").layers[0].positions
    open_ = torch.full((1, HEADS, 400, HEAD), 10.0, dtype=torch.bfloat16)
    distances = torch.arange(400)[:, None] - torch.arange(400)
    counted = part._counted(open_, open_, None, distances[None, None])
    seen = distances >= (0 if side == "decoder" else -400)
    assert torch.equal(counted[0, 0][seen], distances[seen].abs() + 1.0)  # bfloat16 counts to 256


@one.every_side
def test_nan_among_the_logits_is_no_index(side):
    """NaN reaches the output, so that mixed-precision training skips the update."""
    stack, x = one.stack_of(side, "cope"), one.stream()
    x[2, 0, 0] = float("nan")
    output = one.attended(stack, x)[0]
    assert output[-1, 0].isnan().all() and output[:, 1:].isfinite().all()
    output.sum().backward()
