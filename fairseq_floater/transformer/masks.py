"""Hide keys from queries: by masks that are added to the logits, or by boolean flags.

Letters: T query length, S key length, B sentences, H heads.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_floater.position_encoders.eval_law import WINDOW
from fairseq_floater.position_encoders.hooks import for_each_query
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.transformer.decoding_cache import Keys

# ln n would be 0 for a query that sees one key, and -inf for padding that sees none.
SMALLEST_LOG = 0.1
# The first tokens, which `--position-eval window` never hides (attention sinks).
ALWAYS_SEEN = 4


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask to add to the logits: -inf where a key is ``hidden``, else 0; of the same shape."""
    zeros = torch.zeros_like(hidden, dtype=dtype)
    return zeros.masked_fill_(hidden.bool(), float("-inf"))


def summed(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add two additive masks; either may be None."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask + other


def hidden_keys(padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """Return which keys padding [B, S] or mask hides from each query: bool [B or 1, 1, T or 1, S]."""
    hidden = None if padding is None else padding.bool()[:, None, None]
    if attn_mask is None:
        return hidden
    by_mask = attn_mask.isneginf()
    if by_mask.dim() == 2:
        by_mask = by_mask[None, None]
    return by_mask if hidden is None else hidden | by_mask


def log_length_factor(q: Tensor, keys: Keys, attn_mask: Tensor | None, trained: float) -> Tensor:
    """Return max(ln n, 0.1) / ln N for queries that see n keys: [B or 1, 1, T or 1, 1], of q's dtype.

    With this factor, attention to n keys is as sharp as in training with N (Chiang and Cholak 2022).

    Args:
        q: queries, [B, H, T, D].
        keys: S of them, with their padding.
        attn_mask: -inf hides a key from all heads.
        trained: N.
    """
    padding = None if keys.padding is None else for_each_query(keys.padding, q)
    if attn_mask is not None and attn_mask.dim() == 4:
        attn_mask = attn_mask[:, :1]
    hidden = hidden_keys(padding, attn_mask)
    seen = torch.full((1, 1, 1, 1), keys.k.size(2), device=q.device)
    if hidden is not None:
        seen = seen - hidden.sum(-1, keepdim=True)
    logarithms = seen.to(torch.promote_types(q.dtype, torch.float32)).log()
    return (logarithms.clamp(min=SMALLEST_LOG) / math.log(trained)).to(q.dtype)


def widen_masks(
    encoder_out: Tensor,
    encoder_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    padding_mask: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Prepend the source's keys to the masks of self-attention; only the source's padding is hidden."""
    source_len, batch, _ = encoder_out.shape
    if attn_mask is not None:
        attn_mask = torch.cat(
            (attn_mask.new_zeros(attn_mask.size(0), source_len), attn_mask), dim=1
        )
    if padding_mask is not None:
        if encoder_padding_mask is None:
            encoder_padding_mask = padding_mask.new_zeros(batch, source_len)
        padding_mask = torch.cat((encoder_padding_mask, padding_mask), dim=1)
    return attn_mask, padding_mask


def window_mask(stack: Any, tokens: Tokens, dtype: torch.dtype) -> Tensor | None:
    """Return the self-attention mask of ``--position-eval window:W``, [B or 1, 1, T, S], or None."""
    law = stack.eval_law
    if law is None or law.kind != WINDOW or stack.training:
        return None
    at = replace(tokens, warp=None).at(use_slots=False)  # W counts tokens, whatever their positions
    far = at.distances.abs() > law.size
    hidden = far & (at.keys >= ALWAYS_SEEN)[:, None]
    return additive_mask(hidden[:, None], dtype) if bool(hidden.any()) else None
