"""Self-attention whose keys and values have a vector added for each pair of tokens, written out."""

import torch
from one_attention import causal_mask, heads_of

from fairseq_floater.position_encoders.transforms import At


def stretched(length, rows_per_token):
    """Tokens of which each stands three rows behind the one before it."""
    places = 3 * torch.arange(length)[None]
    return At(places, places, 3 * length, rows_per_token)


def written_out(stack, x, of_keys, of_values):
    """Logits and output of ``x`` [T, B, C] by Shaw's equations 3 and 4, with vectors [(H,) T, S, D]."""
    q, k, v = heads_of(stack, x)
    scores = torch.einsum("bhtd,bhtsd->bhts", q, k[:, :, None] + of_keys) / q.size(-1) ** 0.5
    scores = scores + causal_mask(stack, len(x))
    read = torch.einsum("bhts,bhtsd->bhtd", scores.softmax(-1), v[:, :, None] + of_values)
    return scores, stack.layers[0].self_attn.out_proj(read.permute(2, 0, 1, 3).flatten(2))
