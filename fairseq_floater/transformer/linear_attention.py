"""Attend without a softmax: a key's weight is a product of features, so that keys can be summed first.

o_i = Σ_j w_ij v_j / Σ_j u_ij with w_ij = (R_i φ(q_i))·(R_j φ(k_j)) above, turned by RoPE's R, and
u_ij = φ(q_i)·φ(k_j) below, which stays positive. Either is a product of φ(q_i) with a sum that does
not know i: a sentence needs two sums, and decoding a state of fixed size in place of cached keys.
Katharopoulos et al. 2020; with RoPE, Su et al. 2021.

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

# Divides where the sum of the weights vanishes: padding in front of a sentence sees no key.
SMALLEST_SUM = 1e-6


class Features(NamedTuple):
    """Hold φ of queries or keys, turned as it stands above the fraction bar, and as below.

    Shapes: [B, H, T or S, F] each, float32 or more.
    """

    above: Tensor
    below: Tensor

    def hide(self, hidden: Tensor | None) -> Features:
        """Give hidden keys, [B or 1, H or 1, 1, S], features of zero."""
        if hidden is None:
            return self
        hidden = hidden.transpose(-2, -1)
        return Features(self.above.masked_fill(hidden, 0.0), self.below.masked_fill(hidden, 0.0))


class Sums(NamedTuple):
    """Hold all that queries read of the keys: Σ_j k_j v_j^T [B, H, F, D] and Σ_j k_j [B, H, F]."""

    key_values: Tensor
    keys: Tensor

    @classmethod
    def of(cls, keys: Features, values: Tensor) -> Sums:
        """Sum over the keys; ``values`` [B, H, S, D]."""
        return cls(keys.above.transpose(2, 3) @ values, keys.below.sum(2))

    def plus(self, other: Sums) -> Sums:
        """Add the sums over other keys."""
        return Sums(self.key_values + other.key_values, self.keys + other.keys)


class LinearAttention(PositionBiasedAttention):
    """Replace the softmax in attention with positions by normalised products of features.

    Features and sums are float32 (of a double model float64), with autocast off. Parameters and their
    names are the base class's. Of the hooks, logits' scale and biases and values of weights have no
    place here, and attention dropout has no weights to drop.

    Args:
        kernel: ``elu``: φ = elu + 1. ``cosine``: w = u = 1 + (R_i q_i)·(R_j k_j) of unit vectors, turned
            on both sides of the bar, since it is never negative.
    """

    has_weights: ClassVar[bool] = False

    def __init__(self, *args: Any, kernel: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.kernel = kernel

    def _attend(
        self, given: Inputs, need_weights: bool, before_softmax: bool, need_head_weights: bool
    ) -> tuple[Tensor, None]:
        """Attend by sums over the keys, which the cache holds.

        A mask of one row for all queries leaves the sums as they are; one of [T, S] needs the product
        of each query with each key, and no incremental state.

        Raises:
            ValueError: weights or logits are to be returned.
        """
        if need_weights or before_softmax:
            raise ValueError(
                "need_weights, need_head_weights and before_softmax must be off in linear attention, "
                "which forms no weights; use `--attention-kind softmax`."
            )
        query, key, value, padding, attn_mask, hooks, tables, incremental_state, held, _ = given
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
        earlier = Sums(**cast(dict[str, Tensor], held)) if held else None
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
    held: Sums | None,
) -> tuple[Tensor, Sums | None]:
    """Return what queries read, [B, H, T, D], and the sums that they read it from, if any.

    Args:
        q: of the queries.
        k: of new keys; None where ``held`` has all.
        v: values of new keys, [B, H, S, D].
        mask: -inf hides a key from a query; broadcasts to [B, H, T, S].
        held: sums over earlier keys, [B or B / beam, ...].
    """
    with torch.autocast(q.below.device.type, enabled=False):
        if k is None or v is None:
            assert held is not None
            sums = held
        elif mask is not None:
            return _masked_products(q, k, v, mask), None
        else:
            sums = Sums.of(k, v) if held is None else Sums.of(k, v).plus(held)
        above = products_with(q.above, sums.key_values)
        below = products_with(q.below, sums.keys.unsqueeze(3))
        return above / below.clamp(min=SMALLEST_SUM), sums


def _masked_products(q: Features, k: Features, v: Tensor, mask: Tensor) -> Tensor:
    """Multiply each query with each key that ``mask`` shows it: [B, H, T, D].

    Training a decoder takes this form, T^2 products that run side by side, for the state's T steps.
    """
    hidden = mask.isneginf()
    weights = (q.above @ k.above.transpose(2, 3)).masked_fill(hidden, 0.0)
    seen = (~hidden).to(v.dtype) @ k.below
    below = (q.below * seen).sum(3, keepdim=True)
    return weights @ v / below.clamp(min=SMALLEST_SUM)


def attention_class(cfg: Any, cross: bool) -> Callable[..., PositionBiasedAttention]:
    """Return what builds self- or ``cross``-attention under the model's options."""
    if cfg.attention_kind == LINEAR and (cfg.linear_cross or not cross):
        return partial(LinearAttention, kernel=cfg.linear_kernel)
    law = EvalLaw.read(cfg)
    in_evaluation = law.size if law is not None and law.kind == LOGN else 0
    return partial(
        PositionBiasedAttention,
        log_length=cfg.attention_log_length,
        eval_log_length=in_evaluation,
    )
