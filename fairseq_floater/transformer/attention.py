"""Attend with positions: fairseq's attention with the hooks of position encoders.

fairseq's attention passes its projections to torch's fused function, which takes no bias that differs
from token to token. This is the same attention, but it projects by itself. Masks and returned weights
are those of fairseq's `MultiheadAttention`. The cache of decoding is in `decoding_cache`.

Letters: T query length, S key length, B sentences (times beam), H heads, D head width, C = H * D.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_floater.position_encoders.hooks import (
    NEUTRAL,
    AttentionHooks,
    IncrementalState,
    Tables,
    first_copies,
)
from fairseq_floater.position_encoders.shared_options import FLOAT32
from fairseq_floater.transformer.decoding_cache import (
    Cache,
    Keys,
    NewOrder,
    appended,
    beams_as_queries,
    products_with,
    queries_as_beams,
    reordered,
)
from fairseq_floater.transformer.decoding_weights import prepare_projections
from fairseq_floater.transformer.masks import additive_mask, hidden_keys, log_length_factor, summed

# cuDNN's attention, torch's first choice for 16-bit numbers on an H100, plans for 50 to 150 ms at each new
# shape: in training most batches have one, in decoding every step. Torch's other kernels need no plan.
torch.backends.cuda.enable_cudnn_sdp(False)


class Inputs(NamedTuple):
    """The inputs of attention: keys once per sentence, and masks that are added to the logits.

    ``key`` and ``value`` are None if ``cache`` has all keys.
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    padding: Tensor | None
    attn_mask: Tensor | None
    hooks: AttentionHooks
    tables: Tables
    incremental_state: IncrementalState | None
    cache: Cache
    static_kv: bool


class PositionBiasedAttention(MultiheadAttention):
    """Extend fairseq's attention by the hooks of :class:`AttentionHooks`.

    Keys and values are projected and turned before they are cached. Biases are computed for all keys.
    ``log_length`` N > 1 multiplies the logits of a query that sees n keys by max(ln n, 0.1) / ln N.
    ``eval_log_length`` N does so in evaluation alone, and only if n > N.
    """

    #: Whether weights can be returned.
    has_weights: ClassVar[bool] = True

    def __init__(
        self, *args: Any, log_length: float = 0.0, eval_log_length: float = 0.0, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self.log_length, self.eval_log_length = log_length, eval_log_length
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError(
                "add_bias_kv and add_zero_attn must be off: the key that they add has no position."
            )
        # `--retain-dropout-modules MultiheadAttention` means this class as well.
        self.dropout_module.module_name = "MultiheadAttention"

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool | None = None,
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
            need_weights: None: return them if this kind of attention has weights.
            attn_mask: added to the logits, or boolean and true where a key is hidden; anything that
                broadcasts to [B, H, T, S].
            hooks: where positions enter; ``tables`` are the tensors that were prepared for them.
            beam_size: consecutive copies of each sentence in the keys; the cache keeps one.
        """
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = additive_mask(attn_mask, query.dtype)
        cache = self._get_input_buffer(incremental_state)
        if cache and static_kv:
            key = value = None  # the cache has all of them
        elif incremental_state is not None and beam_size > 1:
            # The cache keeps the keys of one copy. The beam size is stored for reordering.
            self.set_incremental_state(incremental_state, "beam", {"size": beam_size})
            key, value = (first_copies(x, 1, beam_size) for x in (key, value))
            key_padding_mask = first_copies(key_padding_mask, 0, beam_size)
            hooks = hooks.one_per_sentence(beam_size)
        given = Inputs(
            query,
            key,
            value,
            key_padding_mask,
            attn_mask,
            hooks,
            tables,
            incremental_state,
            cache,
            static_kv,
        )
        wanted = need_head_weights or (self.has_weights if need_weights is None else need_weights)
        return self._attend(given, wanted, before_softmax, need_head_weights)

    def _attend(
        self, given: Inputs, need_weights: bool, before_softmax: bool, need_head_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with a softmax of the scores; shapes and flags as in :meth:`forward`."""
        q, keys = self._queries_and_keys(given)
        hooks, tables, static_kv = given.hooks, given.tables, given.static_kv
        attn_mask = _with_bias(q, keys, given.attn_mask, hooks, tables)
        q, scale = hooks.turn(q, "q", tables), hooks.scaling(self.head_dim)
        trained = self.log_length or (0 if self.training else self.eval_log_length)
        if trained:
            factor = log_length_factor(q, keys, given.attn_mask, trained)
            factor = factor if self.log_length else factor.clamp(min=1)
            q, attn_mask = q * factor, None if attn_mask is None else attn_mask * factor
        explicit = need_weights or before_softmax or hooks.needs_weights
        # In training fairseq's cross-attention drops out explicit weights. Doing the same draws the same
        # random numbers: a run without positions equals fairseq's under one seed.
        draws = static_kv and self.training and self.dropout_module.p > 0
        if not explicit and not draws:
            return self._merge(self._fused(q, keys, attn_mask, scale)), None
        scores = _scores(q * scale, keys, attn_mask)  # [B, H, T, S]
        if before_softmax:
            return scores.flatten(0, 1), keys.v.flatten(0, 1)
        if keys.padding is not None and not static_kv:
            # Under a causal mask, padding before a sentence sees no key. If its weights were NaN, so would
            # be its key and value in the next block, and NaN reaches real tokens even from a hidden key.
            scores = scores.clamp(min=torch.finfo(scores.dtype).min)
        output, weights = self._by_weights(scores, keys.v, hooks, tables)
        if not need_weights:
            return output, None
        return output, weights if need_head_weights else weights.mean(dim=0)

    def reorder_incremental_state(
        self,
        incremental_state: IncrementalState,
        new_order: Tensor,
        known: NewOrder | None = None,
    ) -> IncrementalState:
        """Reorder as fairseq does. Keys cached once per sentence stay while its hypotheses are adjacent.

        ``known`` is ``new_order`` [B], analysed once for all attentions.
        """
        known = known or NewOrder(new_order)
        cache = self._get_input_buffer(incremental_state)
        if not cache:
            return incremental_state
        order: Tensor | None = new_order
        beam = self.get_incremental_state(incremental_state, "beam")
        if beam is not None:
            kept = len(next(iter(cache.values())))
            order, beam["size"] = known.of_sentences(kept, beam["size"])
        if order is not None:
            self._set_input_buffer(incremental_state, reordered(cache, order, known.changed))
        return incremental_state

    def holds_keys(self, incremental_state: IncrementalState | None) -> bool:
        """Return whether an earlier step has cached keys, or sums over them."""
        return bool(self._get_input_buffer(incremental_state))

    def make_generation_fast_(self, weights: str = FLOAT32, **kwargs: Any) -> None:
        """Prepare for decoding; fairseq calls this if no training will follow."""
        projections = self.q_proj, self.k_proj, self.v_proj, self.out_proj
        prepare_projections(*projections, weights=weights)

    def _projected(self, stream: str, x: Tensor, hooks: AttentionHooks) -> Tensor:
        """Project ``x`` [T, B, C] for ``stream`` q, k or v: [B, H, T, D]."""
        x = hooks.project(stream, getattr(self, f"{stream}_proj"), x)
        return x.view(x.size(0), -1, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _queries_and_keys(self, given: Inputs) -> tuple[Tensor, Keys]:
        """Return projected queries, not turned yet, and all keys, new and cached, turned."""
        query, key, value, padding, _, hooks, tables, incremental_state, cache, static_kv = given
        q = self._projected("q", query, hooks)
        if key is None or value is None:
            return q, Keys.read(cache)
        k, v = self._projected("k", key, hooks), self._projected("v", value, hooks)
        k, v = hooks.turn(k, "k", tables), hooks.turn(v, "v", tables)
        keys = Keys(k, v, padding, hooks.note(key))
        if incremental_state is None:
            return q, keys
        if static_kv and padding is not None and not padding.any():
            keys = keys._replace(padding=None)  # later steps need not check it again
        cache = keys.as_cache() if static_kv else appended(cache, keys)
        self._set_input_buffer(incremental_state, cache)
        return q, Keys.read(cache)

    def _merge(self, x: Tensor) -> Tensor:
        """Join the heads and project: [B, H, T, D] -> [T, B, C]."""
        x = x.permute(2, 0, 1, 3).reshape(x.size(2), x.size(0), self.embed_dim)
        return self.out_proj(x)

    def _fused(self, q: Tensor, keys: Keys, attn_mask: Tensor | None, scale: float) -> Tensor:
        """Attend with torch's fused function: [B, H, T, D]; keys may be held once per sentence."""
        sentences = keys.k.size(0)
        if attn_mask is not None and sentences < q.size(0):
            attn_mask = beams_as_queries(attn_mask.expand(q.size(0), -1, -1, -1), sentences)
        if keys.padding is not None:
            hidden = additive_mask(keys.padding[:, None, None], q.dtype)
            attn_mask = summed(attn_mask, hidden)
        drops = self.training or self.dropout_module.apply_during_inference
        attended = F.scaled_dot_product_attention(
            beams_as_queries(q, sentences),
            keys.k,
            keys.v,
            attn_mask=None if attn_mask is None else attn_mask.to(q.dtype),
            dropout_p=self.dropout_module.p if drops else 0.0,
            scale=scale,
        )
        return queries_as_beams(attended, q.size(0))

    def _by_weights(
        self, scores: Tensor, v: Tensor, hooks: AttentionHooks, tables: Tables
    ) -> tuple[Tensor, Tensor]:
        """Attend with the softmax of ``scores`` [B, H, T, S]: [T, B, C], and the weights [H, B, T, S]."""
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
        probabilities = self.dropout_module(weights.type_as(scores))
        attended = products_with(probabilities, v)
        if hooks.needs_weights:
            attended = attended + hooks.values(probabilities, tables)
        return self._merge(attended), weights.transpose(1, 0)


def _with_bias(
    q: Tensor, keys: Keys, attn_mask: Tensor | None, hooks: AttentionHooks, tables: Tables
) -> Tensor | None:
    """Add the positions' bias of the logits to ``attn_mask``; ``q`` [B, H, T, D] is not turned yet."""
    bias = hooks.bias(q, keys.k, tables)
    if hooks.needs_between:
        hidden = hidden_keys(keys.padding, attn_mask)
        between = hooks.between(q, keys.k, keys.notes, hidden, tables)
        bias = summed(bias, between)
    return summed(attn_mask, bias)


def _scores(q: Tensor, keys: Keys, attn_mask: Tensor | None) -> Tensor:
    """Return the masked logits, [B, H, T, S]; keys may be held once per sentence."""
    scores = products_with(q, keys.k.transpose(2, 3))
    if attn_mask is not None:
        scores = scores + attn_mask
    if keys.padding is None:
        return scores
    hidden = keys.padding.bool()[:, None, None, None]
    by_sentence = scores.unflatten(0, (keys.k.size(0), -1))
    return by_sentence.masked_fill(hidden, float("-inf")).flatten(0, 1)
