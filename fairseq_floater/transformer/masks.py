"""Say which keys a query must not see: by masks that are added to the logits, or by flags.

Letters: T query length, S key length, B sentences, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask to add to the logits: -inf where a key is ``hidden``, else 0; of the same shape."""
    zeros = torch.zeros_like(hidden, dtype=dtype)
    return zeros.masked_fill_(hidden.bool(), float("-inf"))


def hidden_keys(padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """Return whether a query must not see a key, [B or 1, 1, T or 1, S], by padding [B, S] or mask."""
    hidden = None if padding is None else padding.bool()[:, None, None]
    if attn_mask is None:
        return hidden
    by_mask = attn_mask.isneginf()
    if by_mask.dim() == 2:
        by_mask = by_mask[None, None]
    return by_mask if hidden is None else hidden | by_mask


def widen_masks(
    encoder_out: Tensor,
    encoder_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    padding_mask: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Widen the masks of self-attention by the source in front (every source key is visible)."""
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
