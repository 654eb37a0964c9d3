"""Attend without a softmax: a key's weight is a product of features, so that keys can be summed first.

o_i = Σ_j w_ij v_j / Σ_j u_ij. Above the fraction bar w_ij = (R_i φ(q_i))·(R_j φ(k_j)) is rotated by RoPE's
R. Below it u_ij = φ(q_i)·φ(k_j) is not, and stays positive. Both are products of φ(q_i) with a sum that
does not depend on i. So a sentence needs two sums, and decoding keeps a state of fixed size instead of
cached keys. Katharopoulos et al. 2020; with RoPE, Su et al. 2021.

Letters: T query length, S key length, B sentences (times beam), H heads, D head width, F features
(D for kernel `elu`, D + 1 for `cosine`), C = H * D.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.position_encoders.eval_law import LOGN, EvalLaw
from fairseq_floater.position_encoders.hooks import AttentionHooks, Tables
from fairseq_floater.position_encoders.shared_options import COSINE, LINEAR
from fairseq_floater.transformer.attention import Inputs, PositionBiasedAttention
from fairseq_floater.transformer.decoding_cache import products_with
from fairseq_floater.transformer.masks import hidden_keys

# The smallest divisor. Padding before a sentence sees no key, so its weights sum to 0.
SMALLEST_SUM = 1e-6


class Features(NamedTuple):
    """Features φ of queries or keys: rotated, for above the fraction bar, and for below it.

    Shapes: [B, H, T or S, F] each, float32 or more.
    """

    above: Tensor
    below: Tensor

    def hide(self, hidden: Tensor | None) -> Features:
        """Set the features of ``hidden`` keys, [B or 1, H or 1, 1, S], to zero."""
        if hidden is None:
            return self
        hidden = hidden.transpose(-2, -1)
        return Features(self.above.masked_fill(hidden, 0.0), self.below.masked_fill(hidden, 0.0))


class Sums(NamedTuple):
    """All that queries need of the keys: Σ_j k_j v_j^T [B, H, F, D] and Σ_j k_j [B, H, F]."""

    key_values: Tensor
    keys: Tensor

    @classmethod
    def of(cls, keys: Features, values: Tensor) -> Sums:
        """Sum over the keys; ``values`` [B, H, S, D]."""
        return cls(keys.above.transpose(2, 3) @ values, keys.below.sum(2))

    def plus(self, other: Sums) -> Sums:
        return Sums(self.key_values + other.key_values, self.keys + other.keys)


class LinearAttention(PositionBiasedAttention):
    """Attention with positions that replaces the softmax by normalised products of features.

    Features and sums are float32 (float64 in a double model), with autocast off. Parameters and their
    names are the base class's. The hooks for scale and bias of the logits and for values of weights do
    not apply. Attention dropout has no effect, since there are no weights to drop.

    Args:
        kernel: ``elu``: φ = elu + 1. ``cosine``: w = u = 1 + (R_i q_i)·(R_j k_j) of unit vectors. It is
            rotated below the fraction bar too, since it is never negative.
    """

    has_weights: ClassVar[bool] = False

    def __init__(self, *args: Any, kernel: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.kernel = kernel

    def _attend(
        self, given: Inputs, need_weights: bool, before_softmax: bool, need_head_weights: bool
    ) -> tuple[Tensor, None]:
        """Attend with sums over the keys; the cache holds these sums.

        If the mask has one row for all queries, sums suffice. A mask of [T, S] needs the product of each
        query with each key, and allows no incremental state.

        Raises:
            ValueError: weights or logits are requested.
        """
        if need_weights or before_softmax:
            raise ValueError(
                "need_weights, need_head_weights and before_softmax must be off in linear attention, "
                "which forms no weights; use `--attention-kind softmax`."
            )
        query, key, value, padding, attn_mask, hooks, tables, incremental_state, cache, _ = given
        q = self._projected("q", query, hooks)
        queries = self._features(q, "q", hooks, tables)
        by_query = attn_mask if attn_mask is not None and attn_mask.size(-2) > 1 else None
        assert by_query is None or incremental_state is None, "a step of decoding sees all keys"
        keys = values = None
        if key is not None and value is not None:
            k, v = self._projected("k", key, hooks), self._projected("v", value, hooks)
            hidden = hidden_keys(padding, attn_mask if by_query is None else None)
            keys = self._features(k, "k", hooks, tables).hide(hidden)
            values = hooks.turn(v.to(keys.below.dtype), "v", tables)
        earlier = Sums(**cast(dict[str, Tensor], cache)) if cache else None
        attended, sums = _read(queries, keys, values, by_query, earlier)
        if incremental_state is not None and sums is not None:
            self._set_input_buffer(incremental_state, sums._asdict())
        return self._merge(attended.to(q.dtype)), None

    def _features(self, x: Tensor, stream: str, hooks: AttentionHooks, tables: Tables) -> Features:
        """Map queries or keys [B, H, T, D] to their features."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.kernel == COSINE:
            turned = hooks.turn(F.normalize(x, dim=-1), stream, tables)
            with_one = F.pad(turned, (1, 0), value=1.0)
            return Features(with_one, with_one)
        positive = F.elu(x) + 1
        return Features(hooks.turn(positive, stream, tables), positive)


def _read(
    q: Features,
    k: Features | None,
    v: Tensor | None,
    mask: Tensor | None,
    earlier: Sums | None,
) -> tuple[Tensor, Sums | None]:
    """Return the output of the attention, [B, H, T, D], and the sums that it used, if any.

    Args:
        q: features of the queries.
        k: features of new keys; None if ``earlier`` has all keys.
        v: values of new keys, [B, H, S, D].
        mask: -inf hides a key from a query; broadcasts to [B, H, T, S].
        earlier: sums over earlier keys, [B or B / beam, ...].
    """
    with torch.autocast(q.below.device.type, enabled=False):
        if k is None or v is None:
            assert earlier is not None
            sums = earlier
        elif mask is not None:
            return _masked_products(q, k, v, mask), None
        else:
            sums = Sums.of(k, v) if earlier is None else Sums.of(k, v).plus(earlier)
        above = products_with(q.above, sums.key_values)
        below = products_with(q.below, sums.keys.unsqueeze(3))
        return above / below.clamp(min=SMALLEST_SUM), sums


def _masked_products(q: Features, k: Features, v: Tensor, mask: Tensor) -> Tensor:
    """Multiply each query with each key that ``mask`` shows it: [B, H, T, D].

    Training a decoder uses this form: T^2 products in parallel instead of T steps of the state.
    """
    hidden = mask.isneginf()
    weights = (q.above @ k.above.transpose(2, 3)).masked_fill(hidden, 0.0)
    seen = (~hidden).to(v.dtype) @ k.below
    below = (q.below * seen).sum(3, keepdim=True)
    return weights @ v / below.clamp(min=SMALLEST_SUM)


def attention_class(cfg: Any, cross: bool) -> Callable[..., PositionBiasedAttention]:
    """Return the constructor of self- or ``cross``-attention for the model's options."""
    if cfg.attention_kind == LINEAR and (cfg.linear_cross or not cross):
        return partial(LinearAttention, kernel=cfg.linear_kernel)
    law = EvalLaw.read(cfg)
    in_evaluation = law.size if law is not None and law.kind == LOGN else 0
    return partial(
        PositionBiasedAttention,
        log_length=cfg.attention_log_length,
        eval_log_length=in_evaluation,
    )
