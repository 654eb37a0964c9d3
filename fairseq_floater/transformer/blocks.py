"""Pass positions from encoder and decoder blocks to their attention.

All but the attention and `forward` is fairseq's, parameters and their names included. fairseq's `forward`
has no argument for positions. They are passed as plain tensors, so that activation checkpointing sees
them. Only the encoder that prepared them and the block's part of it, ``positions``, know what they mean.

Letters: T tokens, B sentences, C channels, N rows of the table, S streams (see `position_encoders`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from fairseq.modules import LayerNorm
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_floater.position_encoders.hooks import (
    AttentionHooks,
    IncrementalState,
    PositionBias,
    ProjectionBiases,
    Tables,
)
from fairseq_floater.position_encoders.in_attention import AttentionPart
from fairseq_floater.position_encoders.shared_options import FLOAT32
from fairseq_floater.position_encoders.signal import CROSS_QUERY_STREAMS, SELF_STREAMS
from fairseq_floater.transformer.attention import PositionBiasedAttention
from fairseq_floater.transformer.decoding_weights import prepare_projections
from fairseq_floater.transformer.linear_attention import attention_class
from fairseq_floater.transformer.masks import widen_masks


class _BlockMixin(nn.Module):
    """What encoder and decoder blocks have in common."""

    normalize_before: bool
    quant_noise: float
    quant_noise_block_size: int
    # Built by fairseq's layers. torch types an undeclared attribute as a union.
    activation_fn: Any
    activation_dropout_module: Any
    dropout_module: Any
    fc1: Any
    fc2: Any
    final_layer_norm: Any
    residual_connection: Any
    self_attn: Any
    encoder_attn: Any
    #: fairseq's class of the block, by which `--retain-dropout-modules` names its dropout.
    fairseq_name: ClassVar[str]
    #: The block's part of the position encoder, set by the stack.
    positions: nn.Module | None
    #: The block's part of the encoder that acts in cross-attention alone, if any.
    source_positions: nn.Module | None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.source_positions = None
        for module in (self.dropout_module, self.activation_dropout_module):
            module.module_name = self.fairseq_name
        if self.activation_fn is nn.SiLU:  # fairseq's `swish` is the class, not a function
            self.activation_fn = F.silu

    def _attention(
        self, embed_dim: int, cfg: Any, side: Any, **kwargs: Any
    ) -> PositionBiasedAttention:
        """Build attention with the heads of ``side`` (``cfg.encoder`` or ``cfg.decoder``)."""
        build = attention_class(cfg, cross=kwargs.get("encoder_decoder_attention", False))
        return build(
            embed_dim,
            side.attention_heads,
            dropout=cfg.attention_dropout,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            **kwargs,
        )

    def make_generation_fast_(
        self, need_attn: bool | None = False, weights: str = FLOAT32, **kwargs: Any
    ) -> None:
        """Prepare for decoding, as fairseq's layers do; fairseq calls this if no training will follow."""
        self.need_attn = bool(need_attn)  # None without `--print-alignment`
        prepare_projections(self.fc1, self.fc2, weights=weights)

    def _residual(self, x: Tensor, sublayer_output: Tensor, norm: LayerNorm) -> Tensor:
        x = self.residual_connection(self.dropout_module(sublayer_output), x)
        return x if self.normalize_before else norm(x)

    def _prepared(self, x: Tensor, norm: LayerNorm) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.activation_fn(self.fc1(self._prepared(x, self.final_layer_norm)))
        output = self.fc2(self.activation_dropout_module(hidden))
        return self._residual(x, output, self.final_layer_norm)


class PositionBiasedEncoderBlock(_BlockMixin, TransformerEncoderLayerBase):
    """Extend fairseq's encoder layer by positions in its self-attention."""

    fairseq_name = TransformerEncoderLayerBase.__name__

    def build_self_attention(self, embed_dim: int, cfg: Any) -> PositionBiasedAttention:
        return self._attention(embed_dim, cfg, cfg.encoder, self_attention=True)

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        attn_mask: Tensor | None = None,
        *tables: Any,
    ) -> Tensor:
        """Run the block.

        Shapes: x [T, B, C] -> [T, B, C].

        Args:
            x: the stream.
            encoder_padding_mask: [B, T], or None if ``attn_mask`` hides the padding.
            attn_mask: added to the logits, anything that broadcasts to [B, H, T, T].
            tables: what the position encoder prepared for this block.
        """
        normed = self._prepared(x, self.self_attn_layer_norm)
        attended, _ = self.self_attn(
            query=normed,
            key=normed,
            value=normed,
            key_padding_mask=encoder_padding_mask,
            need_weights=False,
            attn_mask=attn_mask,
            hooks=_hooks(self.positions, _biases(self.positions, tables, SELF_STREAMS)),
            tables=tables,
        )
        x = self._residual(x, attended, self.self_attn_layer_norm)
        return self._feed_forward(x)


class PositionBiasedDecoderBlock(_BlockMixin, TransformerDecoderLayerBase):
    """Extend fairseq's decoder layer by positions of both sides.

    A signal of target positions has four streams: three bias q, k and v of self-attention, one biases q of
    cross-attention. A signal of source positions has two, which bias k and v of cross-attention. With
    `--cross-self-attention` the source's part of the joint keys gets the source biases.
    """

    fairseq_name = TransformerDecoderLayerBase.__name__

    def build_self_attention(
        self, embed_dim: int, cfg: Any, **options: Any
    ) -> PositionBiasedAttention:
        is_self = not cfg.cross_self_attention
        return self._attention(embed_dim, cfg, cfg.decoder, self_attention=is_self, **options)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> PositionBiasedAttention:
        return self._attention(
            embed_dim,
            cfg,
            cfg.decoder,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            encoder_decoder_attention=True,
        )

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        *tables: Any,
        need_attn: bool = False,
        need_head_weights: bool = False,
        source_tables: int = 0,
        source_bias: Tensor | None = None,
        beam_size: int = 1,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Run the block, as fairseq's does, with positions.

        Shapes: x [T, B, C]; encoder_out [S, B, C] -> output [T, B, C], attention weights or None, None
        (as fairseq's).

        Args:
            self_attn_mask: added to the logits, anything that broadcasts to [B, H, T, S].
            tables: what the encoder of target positions prepared for this block, then what the encoder
                of source positions did.
            source_tables: how many of ``tables`` are of source positions.
            source_bias: added to the logits of cross-attention, [B or 1, H, T, S].
            beam_size: consecutive copies of each sentence; the cache of cross-attention keeps one.
        """
        target_tables = len(tables) - source_tables
        tables, of_source = tables[:target_tables], tables[target_tables:]
        biases = _biases(self.positions, tables, SELF_STREAMS + CROSS_QUERY_STREAMS)
        source_biases = _biases(self.source_positions, of_source, ("k", "v"))
        cross_q = biases.pop("cross_q", None)
        query = keys = self._prepared(x, self.self_attn_layer_norm)
        if self.cross_self_attention and not self.self_attn.holds_keys(incremental_state):
            assert encoder_out is not None
            keys = torch.cat((encoder_out, query), dim=0)
            for stream, bias in source_biases.items():
                biases[stream] = bias.followed_by(biases[stream], batch=x.size(1))
            self_attn_mask, self_attn_padding_mask = widen_masks(
                encoder_out, encoder_padding_mask, self_attn_mask, self_attn_padding_mask
            )
        attended, weights = self.self_attn(
            query=query,
            key=keys,
            value=keys,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
            hooks=_hooks(self.positions, biases),
            tables=tables,
        )
        x = self._residual(x, attended, self.self_attn_layer_norm)

        if self.encoder_attn is not None and encoder_out is not None:
            # The cache of an earlier step holds the source's keys and values, biases included.
            cross = {} if self.encoder_attn.holds_keys(incremental_state) else source_biases
            if cross_q is not None:
                cross = {**cross, "q": cross_q}
            x, weights = self._attend_to_source(
                x,
                encoder_out,
                _hooks(self.source_positions, cross),
                tables=of_source,
                attn_mask=source_bias,
                need_weights=need_attn or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                beam_size=beam_size,
            )
        return self._feed_forward(x), weights, None

    def _attend_to_source(
        self,
        x: Tensor,
        encoder_out: Tensor,
        hooks: AttentionHooks,
        *,
        need_weights: bool,
        need_head_weights: bool,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply cross-attention and its residual: x [T, B, C], encoder_out [S, B, C] -> [T, B, C].

        Other arguments are the attention's.
        """
        has_weights = self.encoder_attn.has_weights
        attended, weights = self.encoder_attn(
            query=self._prepared(x, self.encoder_attn_layer_norm),
            key=encoder_out,
            value=encoder_out,
            static_kv=True,
            hooks=hooks,
            need_weights=has_weights and need_weights,
            need_head_weights=has_weights and need_head_weights,
            **options,
        )
        return self._residual(x, attended, self.encoder_attn_layer_norm), weights


def _hooks(part: nn.Module | None, biases: dict[str, PositionBias]) -> AttentionHooks:
    """Return how positions enter an attention: by the block's part, or by a signal's ``biases``."""
    return part if isinstance(part, AttentionPart) else ProjectionBiases(biases)


def _biases(
    part: nn.Module | None, tables: Tables, streams: tuple[str, ...]
) -> dict[str, PositionBias]:
    """Return the bias of each stream that a signal has rows for, by name.

    Args:
        part: of the block; one that acts inside attention has no streams.
        tables: as `PreparedSignal` lays them out, or nothing.
        streams: names, in that order.
    """
    if isinstance(part, AttentionPart) or not tables:
        return {}
    positions, hold_biases, *by_stream = tables
    return {
        name: PositionBias(rows, positions, hold_biases) for name, rows in zip(streams, by_stream)
    }


def projection_of(block: Any, stream: str) -> Any:
    """Return the projection of ``block`` to whose output a signal's ``stream`` is added."""
    cross, _, name = stream.rpartition("_")
    attention = block.encoder_attn if cross else block.self_attn
    return getattr(attention, f"{name}_proj")
