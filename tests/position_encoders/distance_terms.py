"""The first block's self-attention of a stack that reads tables of distances: as it runs, and written out."""

import torch
from helpers import parts, visible
from one_attention import causal_mask
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


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result
