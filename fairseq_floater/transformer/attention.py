"""Attend with positions: fairseq's attention, with the hooks of position encoders in its middle.

fairseq's attention hands its projections to torch's fused function, which has no room for a bias
that differs from token to token. This is the same attention with separate
projections; caches, masks, beam sharing and returned weights follow fairseq's `MultiheadAttention`.

Letters: T query length, S key length, B sentences (times beam), H heads, D head width, C = H * D.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_floater.position_encoders.hooks import (
    NEUTRAL,
    AttentionHooks,
    Tables,
    first_copies,
)
from fairseq_floater.position_encoders.hooks import IncrementalState as IncrementalState


class PositionBiasedAttention(MultiheadAttention):
    """Extend fairseq's attention by the hooks of :class:`AttentionHooks`.

    Keys and values are projected and turned before they are cached, biases are computed for all of them.

    Raises:
        ValueError: xformers attention, bias_kv or zero_attn, which have no place for positions.
    """

    #: Whether there are weights to return.
    has_weights: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any):
        if kwargs.get("xformers_att_config"):
            raise ValueError(
                "xformers attention has no place for positions; drop --*-xformers-att-config."
            )
        super().__init__(*args, **kwargs)
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn do not go with positions.")
        # `--retain-dropout-modules MultiheadAttention` means this class as well.
        self.dropout_module.module_name = "MultiheadAttention"

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
        hooks: AttentionHooks = NEUTRAL,
        tables: Tables = (),
        beam_size: int = 1,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, as fairseq's class does, with positions.

        Shapes: query [T, B, C], key and value [S, B, C] -> output [T, B, C], weights [B, T, S]
        (``need_head_weights``: [H, B, T, S]).

        Args:
            attn_mask: added to the logits, anything that broadcasts to [B, H, T, S].
            hooks: where positions enter; ``tables`` are what they were prepared with.
            beam_size: how many times in a row the keys hold each sentence; the cache keeps it once.
        """
        need_weights = need_weights or need_head_weights
        saved = self._get_input_buffer(incremental_state) if incremental_state is not None else None
        if saved and static_kv:
            key = value = None
        elif incremental_state is not None and beam_size > 1:
            key, value, key_padding_mask, hooks = self._once_per_sentence(
                key, value, key_padding_mask, hooks, incremental_state, beam_size
            )
        q = self._heads(hooks.project("q", self.q_proj, query))  # [B, H, T, D]
        k, v = self._keys_and_values(key, value, hooks, tables)
        notes = None if key is None else hooks.note(key)
        if saved is not None:
            k, v, key_padding_mask = self._joined(saved, k, v, key_padding_mask, static_kv)
            held = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
            if notes is not None:
                earlier = saved.get("prev_notes")
                notes = notes if earlier is None else torch.cat([earlier, notes], dim=-1)
                held["prev_notes"] = notes
            self._set_input_buffer(incremental_state, held)
        assert k is not None and v is not None
        bias = hooks.bias(q, k, tables)
        if hooks.needs_between:
            hidden = hidden_keys(key_padding_mask, attn_mask)
            between = hooks.between(q, k, notes, hidden, tables)
            bias = between if bias is None else bias + between
        if bias is not None:
            attn_mask = bias if attn_mask is None else attn_mask + bias
        q = hooks.turn(q, "q", tables)
        scale = hooks.scaling(self.head_dim)
        explicit = static_kv or need_weights or before_softmax or hooks.needs_weights
        if incremental_state is None and not explicit:
            return self._fused(q, k, v, key_padding_mask, attn_mask, scale), None
        scores = self._scores(q * scale, k, key_padding_mask, attn_mask)  # [B, H, T, S]
        if before_softmax:
            return scores.flatten(0, 1), v.flatten(0, 1)
        if key_padding_mask is not None and not static_kv:
            # Under a causal mask padding in front sees no key. Any weights do for it but NaN, which
            # its own key and value would hand on to real tokens, hidden or not.
            scores = scores.clamp(min=torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
        probabilities = self.dropout_module(weights.type_as(scores))
        attended = self._weighted(probabilities, v)
        if hooks.needs_weights:
            attended = attended + hooks.values(probabilities, tables)
        output = self._merge(attended)
        if not need_weights:
            return output, None
        per_head = weights.transpose(1, 0)
        return output, per_head if need_head_weights else per_head.mean(dim=0)

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> IncrementalState:
        """Reorder as fairseq does; keys kept once a sentence stay, unless a sentence leaves."""
        beam = self.get_incremental_state(incremental_state, "beam")
        saved = self._get_input_buffer(incremental_state)
        if beam is None or not saved:
            reordered: IncrementalState = super().reorder_incremental_state(
                incremental_state, new_order
            )
            return reordered
        size: int = beam["size"]
        if len(next(iter(saved.values()))) * size != len(new_order):
            sentences = new_order.view(-1, size)[:, 0] // size
            kept = {k: v if v is None else v.index_select(0, sentences) for k, v in saved.items()}
            self._set_input_buffer(incremental_state, kept)
        return incremental_state

    def set_beam_size(self, beam_size: int) -> None:
        """Ignore it: a beam size left in the module would outlive its search. See `beam_size` above."""

    def _heads(self, x: Tensor) -> Tensor:
        """Split into heads: [T, B, C] -> [B, H, T, D]."""
        return x.view(x.size(0), -1, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _once_per_sentence(
        self,
        key: Tensor | None,
        value: Tensor | None,
        padding: Tensor | None,
        hooks: AttentionHooks,
        incremental_state: IncrementalState,
        beam_size: int,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, AttentionHooks]:
        """Keep one key of each sentence's ``beam_size`` copies, and note it for reordering."""
        self.set_incremental_state(incremental_state, "beam", {"size": beam_size})
        key, value = (first_copies(x, 1, beam_size) for x in (key, value))
        padding = first_copies(padding, 0, beam_size)
        return key, value, padding, hooks.one_per_sentence(beam_size)

    def _keys_and_values(
        self, key: Tensor | None, value: Tensor | None, hooks: AttentionHooks, tables: Tables
    ) -> tuple[Tensor | None, Tensor | None]:
        """Project new keys and values [S, B, C] and turn them: [B, H, S, D]; None stays None."""
        if key is None or value is None:
            return None, None
        k = self._heads(hooks.project("k", self.k_proj, key))
        v = self._heads(hooks.project("v", self.v_proj, value))
        return hooks.turn(k, "k", tables), hooks.turn(v, "v", tables)

    def _merge(self, x: Tensor) -> Tensor:
        """Join the heads and project: [B, H, T, D] -> [T, B, C]."""
        x = x.permute(2, 0, 1, 3).reshape(x.size(2), x.size(0), self.embed_dim)
        projected: Tensor = self.out_proj(x)
        return projected

    def _joined(
        self,
        saved: dict[str, Tensor | None],
        k: Tensor | None,
        v: Tensor | None,
        key_padding_mask: Tensor | None,
        static_kv: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append new keys and values to the cached ones; return both and their padding mask."""
        prev_k, prev_v = saved.get("prev_key"), saved.get("prev_value")
        if prev_k is not None and prev_v is not None:
            k = prev_k if k is None or static_kv else torch.cat([prev_k, k], dim=2)
            v = prev_v if v is None or static_kv else torch.cat([prev_v, v], dim=2)
        assert k is not None and v is not None
        mask = self._append_prev_key_padding_mask(
            key_padding_mask=key_padding_mask,
            prev_key_padding_mask=saved.get("prev_key_padding_mask"),
            batch_size=k.size(0),
            src_len=k.size(2),
            static_kv=static_kv,
        )
        return k, v, mask

    def _fused(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        attn_mask: Tensor | None,
        scale: float,
    ) -> Tensor:
        if padding is not None:
            hidden = additive_mask(padding, q.dtype)
            attn_mask = hidden if attn_mask is None else attn_mask + hidden
        drops = self.training or self.dropout_module.apply_during_inference
        return self._merge(
            F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=None if attn_mask is None else attn_mask.to(q.dtype),
                dropout_p=self.dropout_module.p if drops else 0.0,
                scale=scale,
            )
        )

    def _scores(
        self, q: Tensor, k: Tensor, padding: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Score before the softmax: [B, H, T, S]; ``k`` may be one a sentence, [B / beam, H, S, D]."""
        sentences = k.size(0)
        if sentences == q.size(0):
            scores = q @ k.transpose(2, 3)
        else:
            per_beam = q.unflatten(0, (sentences, -1))
            scores = torch.einsum("bxhtd,bhsd->bxhts", per_beam, k).flatten(0, 1)
        if attn_mask is not None:
            scores = scores + attn_mask
        if padding is not None:
            hidden = padding.bool()[:, None, None, None]
            scores = scores.unflatten(0, (sentences, -1)).masked_fill(hidden, float("-inf"))
            scores = scores.flatten(0, 1)
        return scores

    def _weighted(self, probabilities: Tensor, v: Tensor) -> Tensor:
        """Apply weights [B, H, T, S] to values [B or B / beam, H, S, D] -> [B, H, T, D]."""
        sentences = v.size(0)
        if sentences == probabilities.size(0):
            return probabilities @ v
        per_beam = probabilities.unflatten(0, (sentences, -1))
        return torch.einsum("bxhts,bhsd->bxhtd", per_beam, v).flatten(0, 1)


def additive_mask(padding: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask that hides padding [B, S] from every query: [B, 1, 1, S], 0 or -inf."""
    zeros = torch.zeros_like(padding, dtype=dtype)
    return zeros.masked_fill_(padding.bool(), float("-inf"))[:, None, None]


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
