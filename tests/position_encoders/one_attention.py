"""Attention in a stack's first block, run as the stack runs it, for comparison with oracles."""

import pytest
import torch
from helpers import build, difference, parts, randomise_positions

from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.position_encoders.warp import DrawnWarp
from fairseq_floater.position_encoders.warp_law import Shifting, Stretching, WarpLaw
from fairseq_floater.transformer.stack_positions import prepare

SIDES = ("encoder", "decoder")
every_side = pytest.mark.parametrize("side", SIDES)
LENGTH, SENTENCES, WIDTH = 13, 2, 64


def stack_of(side, encoder, heads=4, width=WIDTH, target="attention", **options):
    """Return a stack in evaluation mode with random positions and random first-block projections."""
    of_both = {"attention_heads": heads, "embed_dim": width}
    options |= {f"{s}_{name}": value for s in SIDES for name, value in of_both.items()}
    model = randomise_positions(build(encoder, "all", target, **options)).eval()
    stack = getattr(model, side)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for attention in attentions(stack):
            for name, parameter in attention.named_parameters():
                size = parameter.size(-1) ** -0.5 if name.endswith("weight") else 0.5
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return stack


def attentions(stack):
    block = stack.layers[0]
    return [a for a in (block.self_attn, getattr(block, "encoder_attn", None)) if a is not None]


def stream(width=WIDTH, length=LENGTH):
    """An input of the first block: [T, B, C]."""
    return torch.randn(length, SENTENCES, width, generator=torch.Generator().manual_seed(4))


def tokens(length=LENGTH, sentences=SENTENCES, **options):
    """Sentences without padding."""
    return Tokens.read(torch.zeros(sentences, length, dtype=torch.bool), **options)


def moved(factors, shifts=None, length=LENGTH):
    """One sentence for each factor; its token i is at factor * i, or at factor * (i + shift)."""
    law = WarpLaw(
        Stretching(min(factors), max(factors)), shifts and Shifting(min(shifts), max(shifts))
    )
    of_each = [x if x is None else torch.tensor(x)[:, None] for x in (factors, shifts)]
    return tokens(length, len(factors), warp=DrawnWarp(law, *of_each))


def causal_mask(stack, length=LENGTH):
    """Minus infinity above the diagonal in a decoder, and 0 elsewhere: [T, T]."""
    hidden = torch.full((length, length), float("-inf")).triu(1)
    return hidden if stack.positions.spec.causal else torch.zeros(length, length)


def bias(stack, of=None):
    """The bias that the blocks share: [B or 1, H, T, S]."""
    encoder = stack.positions
    at = (tokens() if of is None else of).at(encoder.is_relative(encoder.spec.options))
    return stack.positions.logit_bias(at, parts(stack, "positions"), torch.float32)


def attended(stack, x, of=None, mask=None, state=None, **options):
    """Run self-attention on ``x`` [T, B, C]; return output [T, B, C] and, if asked for, weights."""
    block, of = stack.layers[0], tokens(len(x), x.size(1)) if of is None else of
    prepared = prepare(stack, "positions", of, x.dtype)
    if mask is None and state is None:
        mask = causal_mask(stack, len(x))
    return block.self_attn(
        x,
        x,
        x,
        attn_mask=prepared.mask(block, mask),
        incremental_state=state,
        hooks=block.positions,
        tables=prepared.tables(block),
        **{"need_weights": False, **options},
    )


def attended_across(stack, x, source, padding, of=None, warp=None, **options):
    """Run cross-attention from ``x`` [T, B, C] to ``source`` [S, B, C] with ``padding`` [B, S]."""
    block, of = stack.layers[0], tokens(len(x), x.size(1), warp=warp) if of is None else of
    facing = Tokens.read(padding, warp=warp)
    prepared = prepare(stack, "source_positions", of, x.dtype, facing=facing)
    return block.encoder_attn(
        x,
        source,
        source,
        key_padding_mask=padding,
        static_kv=True,
        attn_mask=prepared.mask(block, None),
        hooks=block.source_positions,
        tables=prepared.tables(block),
        **{"need_weights": False, **options},
    )


def logits(stack, x, of=None):
    """Self-attention's logits [B, H, T, S]."""
    return attended(stack, x, of, before_softmax=True)[0].unflatten(0, (x.size(1), -1))


def logits_differ_by(stack, found, expected):
    """Return the largest difference of visible logits; assert that both hide all others."""
    seen = causal_mask(stack, found.size(-1)) == 0
    assert found[..., ~seen].exp().eq(0).all() and expected[..., ~seen].exp().eq(0).all()
    return difference(found[..., seen], expected[..., seen])


def step_by_step(stack, x, **options):
    """Decode token by token; return the outputs [T, B, C] and the final incremental state."""
    state, outputs = {}, []
    for t in range(len(x)):
        of = tokens(t + 1, x.size(1), last_only=True)
        outputs.append(attended(stack, x[t : t + 1], of, state=state, **options)[0])
    return torch.cat(outputs), state


def heads_of(stack, x, source=None):
    """q, k, v of self-attention, or of cross-attention to ``source``, before positions: [B, H, T or S, D]."""
    attention, source = (
        (attentions(stack)[0], x) if source is None else (attentions(stack)[1], source)
    )
    return [
        projection(y).unflatten(2, (attention.num_heads, -1)).permute(1, 2, 0, 3)
        for projection, y in (
            (attention.q_proj, x),
            (attention.k_proj, source),
            (attention.v_proj, source),
        )
    ]


def written_out(stack, q, k, v, bias=0.0):
    """Logits [B, H, T, S] and output [T, B, C] of softmax(q k / sqrt(D) + ``bias``) v."""
    scores = q @ k.transpose(2, 3) / q.size(-1) ** 0.5 + bias + causal_mask(stack, q.size(2))
    read = (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)
    return scores, stack.layers[0].self_attn.out_proj(read)
