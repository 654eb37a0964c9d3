"""Give attention's queries, keys and values position biases (equations 12 and 13).

fairseq's attention hands its projections to torch's fused function, which has no room for a bias
that differs from token to token. This is the same attention with separate
projections; caches, masks, beam sharing and returned weights follow fairseq's `MultiheadAttention`.

Letters: T query length, S key length, B sentences (times beam), H heads, D head width, C = H * D,
N rows of a table of positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_floater.position_encoders.transforms import gather_rows

IncrementalState = dict[str, dict[str, Tensor | None]]


class PositionBias(NamedTuple):
    """Add to each token's projection row ``positions`` [T, B or 1] of ``table`` [N, C]."""

    table: Tensor
    positions: Tensor

    def one_per_sentence(self, beam_size: int) -> PositionBias:
        """Keep the first of each sentence's copies, B of B * beam_size."""
        return PositionBias(self.table, _one_per_sentence(self.positions, 1, beam_size))

    def followed_by(self, other: PositionBias, batch: int) -> PositionBias:
        """Append the biases of ``other``'s tokens, for keys that are joined in time."""
        positions = [self.positions, other.positions + len(self.table)]
        return PositionBias(
            torch.cat([self.table, other.table]),
            torch.cat([p.expand(-1, batch) for p in positions]),
        )


class PositionBiasedAttention(MultiheadAttention):
    """Extend fairseq's attention by ``q_bias``, ``k_bias`` and ``v_bias``.

    They are added after the projection and, for the query, before it is scaled: b_q stands beside
    W_q x in the paper. Keys that come from the cache already hold theirs.

    Raises:
        ValueError: xformers attention, bias_kv or zero_attn, which have no place for biases.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        if kwargs.get("xformers_att_config"):
            raise ValueError(
                "xformers attention has no place for position biases; drop --*-xformers-att-config "
                "or use --position-target hidden."
            )
        super().__init__(*args, **kwargs)
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn do not go with position biases.")
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
        q_bias: PositionBias | None = None,
        k_bias: PositionBias | None = None,
        v_bias: PositionBias | None = None,
        beam_size: int = 1,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, as fairseq's class does, with positions.

        Shapes: query [T, B, C], key and value [S, B, C] -> output [T, B, C], weights [B, T, S]
        (``need_head_weights``: [H, B, T, S]).

        Args:
            q_bias: positions of the queries; ``k_bias`` and ``v_bias`` alike. Others as in fairseq.
            beam_size: how many times in a row the keys hold each sentence; the cache keeps it once.
        """
        need_weights = need_weights or need_head_weights
        saved = self._get_input_buffer(incremental_state) if incremental_state is not None else None
        if saved and "prev_key" in saved and static_kv:
            key = value = None
        if saved is not None and key is not None and beam_size > 1:
            key, value = (_one_per_sentence(x, 1, beam_size) for x in (key, value))
            key_padding_mask = _one_per_sentence(key_padding_mask, 0, beam_size)
            k_bias, v_bias = (
                bias and bias.one_per_sentence(beam_size) for bias in (k_bias, v_bias)
            )
            self.set_incremental_state(incremental_state, "beam", {"size": beam_size})
        q = self._heads(_projected(self.q_proj, query, q_bias))  # [B, H, T, D]
        k = None if key is None else self._heads(_projected(self.k_proj, key, k_bias))
        v = None if value is None else self._heads(_projected(self.v_proj, value, v_bias))
        if saved is not None:
            k, v, key_padding_mask = self._joined(saved, k, v, key_padding_mask, static_kv)
            self._set_input_buffer(
                incremental_state,
                {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask},
            )
        assert k is not None and v is not None
        if incremental_state is None and not (static_kv or need_weights or before_softmax):
            return self._fused(q, k, v, key_padding_mask, attn_mask), None
        scores = self._scores(q, k, key_padding_mask, attn_mask)  # [B * H, T, S]
        if before_softmax:
            return scores, v.flatten(0, 1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
        probabilities = self.dropout_module(weights.type_as(scores))
        output = self._merge(self._weighted(probabilities, v, q.size(0)))
        if not need_weights:
            return output, None
        per_head = weights.view(q.size(0), self.num_heads, q.size(2), -1).transpose(1, 0)
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
        if len(saved["prev_key"]) * size != len(new_order):
            sentences = new_order.view(-1, size)[:, 0] // size
            kept = {k: v if v is None else v.index_select(0, sentences) for k, v in saved.items()}
            self._set_input_buffer(incremental_state, kept)
        return incremental_state

    def set_beam_size(self, beam_size: int) -> None:
        """Ignore it: a beam size left in the module would outlive its search. See `beam_size` above."""

    def _heads(self, x: Tensor) -> Tensor:
        """Split into heads: [T, B, C] -> [B, H, T, D]."""
        return x.view(x.size(0), -1, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

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
        self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        mask = None if attn_mask is None else attn_mask.to(q.dtype)  # [T, S], additive
        if padding is not None:
            at_padding = torch.zeros_like(padding, dtype=q.dtype)
            at_padding = at_padding.masked_fill_(padding.bool(), float("-inf"))[:, None, None]
            mask = at_padding if mask is None else mask + at_padding
        drops = self.training or self.dropout_module.apply_during_inference
        dropout_p = self.dropout_module.p if drops else 0.0
        return self._merge(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
        )

    def _scores(
        self, q: Tensor, k: Tensor, padding: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Score before the softmax: [B * H, T, S]; ``k`` may be one a sentence, [B / beam, H, S, D]."""
        batch, heads, queries, _ = q.shape
        sentences, keys = k.size(0), k.size(2)
        q = q * self.scaling
        if sentences == batch:
            scores = q @ k.transpose(2, 3)
        else:
            q = q.reshape(sentences, -1, heads, queries, self.head_dim)
            scores = torch.einsum("bxhtd,bhsd->bxhts", q, k).flatten(0, 1)
        if attn_mask is not None:
            scores = scores + attn_mask
        if padding is not None:
            scores = scores.view(sentences, -1, heads, queries, keys).masked_fill(
                padding.bool()[:, None, None, None], float("-inf")
            )
        return scores.reshape(batch * heads, queries, keys)

    def _weighted(self, probabilities: Tensor, v: Tensor, batch: int) -> Tensor:
        """Apply weights [B * H, T, S] to values [B or B / beam, H, S, D] -> [B, H, T, D]."""
        sentences, (queries, keys) = v.size(0), probabilities.shape[1:]
        probabilities = probabilities.view(batch, self.num_heads, queries, keys)
        if sentences == batch:
            return probabilities @ v
        probabilities = probabilities.view(sentences, -1, self.num_heads, queries, keys)
        return torch.einsum("bxhts,bhsd->bxhtd", probabilities, v).flatten(0, 1)


def _projected(projection: nn.Module, x: Tensor, bias: PositionBias | None) -> Tensor:
    """Project ``x`` [T, B, C] and add its tokens' rows."""
    if bias is None:
        projected: Tensor = projection(x)
        return projected
    hooked = projection._forward_pre_hooks or projection._forward_hooks
    if type(projection) is not nn.Linear or projection.bias is None or hooked:
        return projection(x) + gather_rows(bias.table, bias.positions)
    # The rows take the place of the projection's own bias in its product: no pass over the tokens
    # more than without positions. That bias is added to whichever is fewer: to the table, so that its
    # gradient is a sum over rows and not over tokens, or in a decoding step to the rows it reads.
    if bias.positions.numel() < len(bias.table):
        rows = gather_rows(bias.table, bias.positions) + projection.bias
    else:
        rows = gather_rows(bias.table + projection.bias, bias.positions)
    rows = rows.expand(*x.shape[:2], -1).reshape(-1, projection.out_features)
    flat = torch.addmm(rows, x.flatten(0, 1), projection.weight.T)
    return flat.view(*x.shape[:2], -1)


def _one_per_sentence(x: Any, batch_dim: int, beam_size: int) -> Any:
    """Keep the first of each sentence's copies along ``batch_dim`` of a tensor; None stays None."""
    if x is None or x.size(batch_dim) == 1:  # the same for all
        return x
    index = torch.arange(0, x.size(batch_dim), beam_size, device=x.device)
    return x.index_select(batch_dim, index)
