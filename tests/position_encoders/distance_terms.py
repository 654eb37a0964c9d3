"""The first block's self-attention of a stack that reads tables of distances: as it runs, and written out."""

import torch
from helpers import parts, visible
from one_attention import causal_mask, heads_of
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_floater.position_encoders.transforms import At

LENGTH, HEADS, WIDTH = 13, 4, 64


def stack_of(side, encoder, **options):
    """A stack with random parameters, and an input [T, B, C] for its first block."""
    heads = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    stack = getattr(visible(encoder, "all", "attention", **heads, **options), side)
    assert stack.layers[0].self_attn.head_dim == WIDTH // HEADS
    generator = torch.Generator().manual_seed(4)
    return stack, torch.randn(LENGTH, 2, WIDTH, generator=generator)


def slots(length=LENGTH):
    """Where the tokens of sentences without padding stand."""
    places = torch.arange(length)[None]
    return At(places, places, length)


def stretched():
    """Two sentences under factors of their own, in quarters of a token."""
    places = (4 * torch.tensor([[0.6], [2.3]]) * torch.arange(LENGTH)).round().long()
    return At(places, places, 4 * 3 * LENGTH, rows_per_token=4)


def tables(stack, at):
    return stack.positions.prepare(at, parts(stack, "positions"), torch.float32)[0]


def attended(stack, x, at=None, **options):
    """Output [T, B, C] and, where asked for, weights."""
    block, at = stack.layers[0], slots(len(x)) if at is None else at
    return block.self_attn(
        x,
        x,
        x,
        attn_mask=causal_mask(stack, len(x)),
        hooks=block.positions,
        tables=tables(stack, at),
        **{"need_weights": False, **options},
    )


def logits(stack, x, at=None):
    """[B, H, T, S]."""
    return attended(stack, x, at, before_softmax=True)[0].unflatten(0, (x.size(1), -1))


def sinusoid(distances, width, frequencies=None):
    """R_d of ``distances`` [...]: [..., W], sines in even channels and cosines in odd ones."""
    if frequencies is None:
        frequencies = [10_000 ** (-2 * c / width) for c in range(width // 2)]
    rows = torch.empty(*distances.shape, width, dtype=torch.float64)
    for c, frequency in enumerate(frequencies):
        angles = distances.double() * frequency
        rows[..., 2 * c], rows[..., 2 * c + 1] = angles.sin(), angles.cos()
    return rows.float()


def written_out(stack, x, at, vectors, divisor, key_term=False):
    """`xl` and `tener`: logits and output of ((q_i + u) k_j + (q_i + v) R_(i-j) + k_j R_(j-i)) / ``divisor``.

    The last term with ``key_term`` only; ``vectors`` makes R [B or 1, T, S, H, D] of distances in
    tokens, [B or 1, T, S].
    """
    part = stack.layers[0].positions
    q, k, v = heads_of(stack, x)
    distances = (at.queries[:, :, None] - at.keys[:, None]) / at.rows_per_token
    rows, mirrored = (
        vectors(d).expand(x.size(1), -1, -1, -1, -1).permute(0, 3, 1, 2, 4)
        for d in (distances, -distances)
    )
    scores = (q + part.u[:, None]) @ k.transpose(2, 3)
    scores = scores + ((q + part.v[:, None])[:, :, :, None] * rows).sum(-1)
    if key_term:
        scores = scores + (k[:, :, None] * mirrored).sum(-1)
    scores = scores / divisor + causal_mask(stack)
    read = scores.softmax(-1) @ v
    return scores, stack.layers[0].self_attn.out_proj(read.permute(2, 0, 1, 3).flatten(2))


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result
