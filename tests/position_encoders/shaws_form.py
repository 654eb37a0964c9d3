"""Self-attention whose keys and values have a vector added for each pair of tokens, written out."""

import torch
from helpers import parts
from one_attention import causal_mask

from fairseq_floater.position_encoders.transforms import At, Tokens


def slots(length, **changes):
    """Where the tokens of sentences without padding stand."""
    at = Tokens.read(torch.zeros(1, length, dtype=torch.bool)).at(slots_do=True)
    return at._replace(**changes)


def stretched(length, rows_per_token):
    """Tokens of which each stands three rows behind the one before it."""
    places = 3 * torch.arange(length)[None]
    return At(places, places, 3 * length, rows_per_token)


def attended(stack, x, at=None, **options):
    """What the first block's self-attention makes of ``x`` [T, B, C]."""
    block, encoder = stack.layers[0], stack.positions
    at = slots(len(x)) if at is None else at
    return block.self_attn(
        x,
        x,
        x,
        attn_mask=causal_mask(stack, len(x)),
        hooks=block.positions,
        tables=encoder.prepare(at, parts(stack, "positions"), x.dtype)[0],
        **{"need_weights": False, **options},
    )[0]


def logits(stack, x, at=None):
    """Its logits: [B, H, T, S]."""
    found = attended(stack, x, at, before_softmax=True)
    return found.unflatten(0, (x.size(1), -1))


def written_out(stack, x, of_keys, of_values):
    """Logits and output of ``x`` [T, B, C] by Shaw's equations 3 and 4, with vectors [(H,) T, S, D]."""
    attention = stack.layers[0].self_attn
    heads = attention.num_heads
    q, k, v = (
        projection(x).unflatten(2, (heads, -1)).permute(1, 2, 0, 3)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    scores = torch.einsum("bhtd,bhtsd->bhts", q, k[:, :, None] + of_keys) / q.size(-1) ** 0.5
    scores = scores + causal_mask(stack, len(x))
    read = torch.einsum("bhts,bhtsd->bhtd", scores.softmax(-1), v[:, :, None] + of_values)
    return scores, attention.out_proj(read.permute(2, 0, 1, 3).flatten(2))
