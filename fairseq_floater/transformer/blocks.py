"""Hand positions from encoder and decoder blocks to their attention (target ``qkv``).

Construction, parameters and names are fairseq's; only `forward` is our own, because
fairseq's has no argument through which positions could travel. They travel as plain tensors, a
table of rows and the row of each token, so that activation checkpointing sees them.

Letters: T tokens, B sentences, C channels, N rows of the table, S streams (see `position_encoders`).
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.modules import LayerNorm
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_floater.transformer.attention import (
    IncrementalState,
    PositionBias,
    PositionBiasedAttention,
)


class _BlockMixin(nn.Module):
    """Share what both blocks do in the same way."""

    normalize_before: bool
    quant_noise: float
    quant_noise_block_size: int
    # Built by fairseq's layers; torch answers an undeclared attribute with a union.
    activation_fn: Any
    activation_dropout_module: Any
    dropout_module: Any
    fc1: Any
    fc2: Any
    final_layer_norm: Any
    residual_connection: Any
    self_attn: Any
    encoder_attn: Any

    def _attention(
        self, embed_dim: int, cfg: Any, side: Any, **kwargs: Any
    ) -> PositionBiasedAttention:
        """Build attention with the heads of ``side`` (``cfg.encoder`` or ``cfg.decoder``)."""
        return PositionBiasedAttention(
            embed_dim,
            side.attention_heads,
            dropout=cfg.attention_dropout,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            **kwargs,
        )

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
    """Extend fairseq's encoder layer: ``position_table`` [N, 3, C] biases q, k and v."""

    def build_self_attention(self, embed_dim: int, cfg: Any) -> PositionBiasedAttention:
        return self._attention(
            embed_dim,
            cfg,
            cfg.encoder,
            self_attention=True,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        position_table: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Run the block: x [T, B, C], encoder_padding_mask [B, T], positions [T, B or 1] -> [T, B, C]."""
        normed = self._prepared(x, self.self_attn_layer_norm)
        q_bias, k_bias, v_bias = stream_biases(position_table, positions, 3)
        attended, _ = self.self_attn(
            query=normed,
            key=normed,
            value=normed,
            key_padding_mask=encoder_padding_mask,
            need_weights=False,
            q_bias=q_bias,
            k_bias=k_bias,
            v_bias=v_bias,
        )
        x = self._residual(x, attended, self.self_attn_layer_norm)
        return self._feed_forward(x)


class PositionBiasedDecoderBlock(_BlockMixin, TransformerDecoderLayerBase):
    """Extend fairseq's decoder layer by positions of both sides.

    ``position_table`` [N, 4, C] biases self-attention's q, k, v and cross-attention's q by target
    position; ``source_table`` [N', 2, C] biases cross-attention's k and v by source position. With
    `--cross-self-attention` the source's share of the joint keys takes the source biases.
    """

    def build_self_attention(
        self, embed_dim: int, cfg: Any, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> PositionBiasedAttention:
        return self._attention(
            embed_dim,
            cfg,
            cfg.decoder,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            self_attention=not cfg.cross_self_attention,
            xformers_att_config=cfg.decoder.xformers_att_config,
        )

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> PositionBiasedAttention:
        return self._attention(
            embed_dim,
            cfg,
            cfg.decoder,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            encoder_decoder_attention=True,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
        position_table: Tensor | None = None,
        positions: Tensor | None = None,
        source_table: Tensor | None = None,
        source_positions: Tensor | None = None,
        beam_size: int = 1,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Run the block, as fairseq's does, with positions.

        Shapes: x [T, B, C]; encoder_out [S, B, C]; positions [T, B or 1]; source_positions
        [S, B or 1] -> output [T, B, C], attention weights or None, None (as fairseq's).
        ``beam_size``: copies of each sentence in a row, of which cross-attention's cache needs one.
        """
        q_bias, k_bias, v_bias, cross_q_bias = stream_biases(position_table, positions, 4)
        query = keys = self._prepared(x, self.self_attn_layer_norm)
        if self.cross_self_attention and not _holds_keys(self.self_attn, incremental_state):
            assert encoder_out is not None
            keys = torch.cat((encoder_out, query), dim=0)
            source_k, source_v = stream_biases(source_table, source_positions, 2)
            k_bias, v_bias = _join(source_k, k_bias, x), _join(source_v, v_bias, x)
            self_attn_mask, self_attn_padding_mask = _widen_masks(
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
            q_bias=q_bias,
            k_bias=k_bias,
            v_bias=v_bias,
        )
        x = self._residual(x, attended, self.self_attn_layer_norm)

        if self.encoder_attn is not None and encoder_out is not None:
            # The cache of an earlier step holds the source's keys and values, biases included.
            if _holds_keys(self.encoder_attn, incremental_state):
                source_table = None
            x, weights = self._attend_to_source(
                x,
                encoder_out,
                cross_q_bias,
                stream_biases(source_table, source_positions, 2),
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                need_weights=need_attn or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
                beam_size=beam_size,
            )
        return self._feed_forward(x), weights, None

    def _attend_to_source(
        self,
        x: Tensor,
        encoder_out: Tensor,
        q_bias: PositionBias | None,
        source_biases: list[PositionBias | None],
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply cross-attention and its residual: x [T, B, C], encoder_out [S, B, C] -> [T, B, C].

        Args:
            x: the block's stream.
            encoder_out: the encoder's output.
            q_bias: positions of the queries.
            source_biases: positions of keys and of values.
            options: for the attention.
        """
        attended, weights = self.encoder_attn(
            query=self._prepared(x, self.encoder_attn_layer_norm),
            key=encoder_out,
            value=encoder_out,
            static_kv=True,
            q_bias=q_bias,
            k_bias=source_biases[0],
            v_bias=source_biases[1],
            **options,
        )
        return self._residual(x, attended, self.encoder_attn_layer_norm), weights


def stream_biases(
    table: Tensor | None, positions: Tensor | None, num_streams: int
) -> list[PositionBias | None]:
    """Return the bias of each stream, from table [N, S, C] and positions [T, B or 1], or None.

    A stream that the table lacks (cross-attention's q without cross-attention) is None.
    """
    if table is None or positions is None:
        return [None] * num_streams
    present = [PositionBias(stream, positions) for stream in table.unbind(1)]
    return [*present, *[None] * (num_streams - len(present))]


def _holds_keys(
    attention: PositionBiasedAttention, incremental_state: IncrementalState | None
) -> bool:
    return "prev_key" in attention._get_input_buffer(incremental_state)


def source_is_cached(block: Any, incremental_state: IncrementalState | None) -> bool:
    """Return whether ``block`` holds the source's keys from an earlier step, biases included."""
    attention = getattr(block, "encoder_attn", None) or block.self_attn
    return isinstance(attention, PositionBiasedAttention) and _holds_keys(
        attention, incremental_state
    )


def _join(
    source: PositionBias | None, target: PositionBias | None, x: Tensor
) -> PositionBias | None:
    """Join the biases, source before target; both are None where the block takes no positions."""
    if source is None or target is None:
        return None
    return source.followed_by(target, batch=x.size(1))


def _widen_masks(
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
