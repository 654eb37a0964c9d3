"""Give positions to the blocks of the decoder.

The class is a subclass of fairseq's. Only the walk through the blocks, where positions enter, is
our own; everything else is inherited, state-dict names included.

Letters: T target and S source tokens, B sentences, C channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import transformer_layer
from torch import Tensor, nn

from fairseq_floater.position_encoders.signal import (
    CROSS_QUERY_STREAMS,
    HIDDEN_STREAMS,
    SELF_STREAMS,
    SOURCE_STREAMS,
    PositionSignal,
)
from fairseq_floater.position_encoders.transforms import Stretch, token_positions
from fairseq_floater.transformer.attention import IncrementalState
from fairseq_floater.transformer.blocks import PositionBiasedDecoderBlock, source_is_cached
from fairseq_floater.transformer.stack_positions import (
    BEAM,
    STRETCH,
    BlockRows,
    all_blocks,
    attach_signal,
    batch_positions,
    longest_input,
    with_base,
    wrapped,
)


class _Source(NamedTuple):
    """Hold the encoder's output as the decoder's blocks need it.

    Shapes: ``states`` [S, B, C], ``padding_mask`` [B, S].
    """

    states: Tensor | None = None
    padding_mask: Tensor | None = None
    stretch: Stretch | None = None
    beam_size: int = 1

    @classmethod
    def read(cls, encoder_out: dict[str, list[Any]] | None) -> _Source:
        """Take what ``encoder_out`` holds; its values are lists of one or none."""
        if not encoder_out:
            return cls()
        return cls(
            next(iter(encoder_out["encoder_out"]), None),
            next(iter(encoder_out["encoder_padding_mask"]), None),
            next(iter(encoder_out.get(STRETCH, ())), None),
            next(iter(encoder_out.get(BEAM, ())), 1),
        )


class FloaterDecoder(TransformerDecoderBase):
    """Extend fairseq's decoder by ``positions`` of target and ``source_positions`` of source tokens.

    The second exists for target ``qkv`` only: cross-attention's keys and values are biased by the
    position of the source token they come from.
    """

    def __init__(
        self,
        cfg: Any,
        dictionary: Any,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
        output_projection: nn.Module | None = None,
    ):
        super().__init__(
            with_base(cfg), dictionary, embed_tokens, no_encoder_attn, output_projection
        )
        self.dropout_module.module_name = "TransformerDecoder"  # for --retain-dropout-modules
        self.hidden = cfg.position_target == "hidden"
        streams: tuple[str, ...] = HIDDEN_STREAMS
        if not self.hidden:
            streams = SELF_STREAMS + (() if no_encoder_attn else CROSS_QUERY_STREAMS)
        shared = {"dim": cfg.decoder.embed_dim, "layers_to_keep": cfg.decoder.layers_to_keep}
        attach_signal(self, "positions", cfg, streams=streams, side="target", **shared)
        self.source_positions: PositionSignal | None = None
        if not self.hidden and (cfg.cross_self_attention or not no_encoder_attn):
            attach_signal(
                self, "source_positions", cfg, streams=SOURCE_STREAMS, side="source", **shared
            )

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        if cfg.position_target == "qkv":
            return wrapped(PositionBiasedDecoderBlock(cfg, no_encoder_attn), cfg)
        return wrapped(transformer_layer.TransformerDecoderLayerBase(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Compute prev_output_tokens [B, T] -> features [B, T, C] and ``attn``, ``inner_states``.

        Arguments and results are those of fairseq's decoder.

        Step by step, only the last token is computed; its position counts all tokens before it.
        """
        source = _Source.read(encoder_out)
        padding_mask = prev_output_tokens.eq(self.padding_idx)
        if incremental_state is not None:
            positions = token_positions(padding_mask)[:, -1:]
            padding_mask = padding_mask[:, -1:]
        has_pads = bool(padding_mask.any())
        if incremental_state is None:
            positions = batch_positions(padding_mask, has_pads)
        embedded = self._embed(prev_output_tokens, incremental_state)
        rows = BlockRows.compute(
            self,
            "positions",
            positions,
            prev_output_tokens.size(1),
            embedded.dtype,
            source.stretch,
            begins=not incremental_state,
        )
        source_rows = self._source_rows(source, incremental_state, embedded.dtype)
        x = embedded.transpose(0, 1)  # [T, B, C]
        if self.hidden:
            x = rows.add_to(x, all_blocks(self)[0])
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x, attn, inner_states = self._through_blocks(
            self.dropout_module(x),
            source,
            rows,
            source_rows,
            incremental_state,
            causal=incremental_state is None and not full_context_alignment,
            padding_mask=padding_mask if self.cross_self_attention or has_pads else None,
            alignment_layer=self.num_layers - 1 if alignment_layer is None else alignment_layer,
        )
        if attn is not None:  # [H, B, T, S] -> mean over the heads asked for
            attn = (attn if alignment_heads is None else attn[:alignment_heads]).mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def _through_blocks(
        self,
        x: Tensor,
        source: _Source,
        rows: BlockRows,
        source_rows: BlockRows | None,
        incremental_state: IncrementalState | None,
        *,
        causal: bool,
        padding_mask: Tensor | None,
        alignment_layer: int,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Pass ``x`` [T, B, C] through the blocks.

        Returns:
            The output [T, B, C], the attention weights [H, B, T, S] of block ``alignment_layer`` if
            it gives any, and the input of the first block with the output of each.
        """
        first = all_blocks(self)[0]
        attn: Tensor | None = None
        inner_states = [x]
        for idx, layer in enumerate(self.layers):
            kwargs: dict[str, Any] = {}
            if not self.hidden:
                kwargs = {**rows.arguments(layer), "beam_size": source.beam_size}
                if source_rows is not None:
                    kwargs["source_table"] = source_rows.table(layer)
                    kwargs["source_positions"] = source_rows.positions
            elif layer is not first:
                x = rows.add_to(x, layer)
            x, layer_attn, _ = layer(
                x,
                source.states,
                source.padding_mask,
                incremental_state,
                self_attn_mask=self.buffered_future_mask(x) if causal else None,
                self_attn_padding_mask=padding_mask,
                need_attn=idx == alignment_layer,
                need_head_weights=idx == alignment_layer,
                **kwargs,
            )
            inner_states.append(x)
            if layer_attn is not None and idx == alignment_layer:
                attn = layer_attn.float().to(x)
        return x, attn, inner_states

    def _embed(self, tokens: Tensor, incremental_state: IncrementalState | None) -> Tensor:
        """Embed all tokens or the last, with fairseq's base positions: [B, T, C]."""
        base = None
        if self.embed_positions is not None:
            base = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
            base = None if base is None else base[:, -1:]
        x = self.embed_scale * self.embed_tokens(tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        return x if base is None else x + base

    def _source_rows(
        self, source: _Source, incremental_state: IncrementalState | None, dtype: torch.dtype
    ) -> BlockRows | None:
        """Compute the rows of source positions, unless the blocks' caches hold them already."""
        states, mask = source.states, source.padding_mask
        if self.source_positions is None or states is None:
            return None
        if source_is_cached(all_blocks(self)[0], incremental_state):
            return None
        if mask is None:
            mask = states.new_zeros(states.size(1), states.size(0), dtype=torch.bool)
        return BlockRows.compute(
            self,
            "source_positions",
            token_positions(mask),
            states.size(0),
            dtype,
            source.stretch,
        )

    def max_positions(self) -> int:
        return longest_input(self, self.positions, self.cfg.decoder.learned_pos)
