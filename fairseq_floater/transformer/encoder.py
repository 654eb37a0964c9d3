"""Encoder and decoder that give positions to their blocks.

Subclasses of fairseq's two stacks. Written again is the walk through the blocks, where positions
enter; everything else is inherited, state-dict names included.

Letters: T target and S source tokens, B sentences, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import transformer_layer
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairseq_floater.position_encoders import POSITION_ENCODERS, stretch_range
from fairseq_floater.position_encoders.base import (
    CROSS_QUERY_STREAMS,
    HIDDEN_STREAMS,
    SELF_STREAMS,
    SOURCE_STREAMS,
    UNLIMITED_POSITIONS,
    PositionSignal,
    token_positions,
)
from fairseq_floater.transformer.attention import IncrementalState
from fairseq_floater.transformer.blocks import (
    PositionBiasedDecoderBlock,
    PositionBiasedEncoderBlock,
    source_is_cached,
)
from fairseq_floater.transformer.stack_positions import (
    BlockRows,
    Stretch,
    all_blocks,
    attach_signal,
)

# Where the encoder's output tells the decoder of `--position-stretch`.
STRETCH = "position_stretch"
# Where it says that each sentence stands there once for every beam.
BEAM = "beam_size"


class FloaterEncoder(TransformerEncoderBase):
    """fairseq's encoder; ``positions`` is its signal over source positions."""

    def __init__(
        self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding, return_fc: bool = False
    ):
        super().__init__(_with_base(cfg), dictionary, embed_tokens, return_fc)
        self.dropout_module.module_name = "TransformerEncoder"  # for --retain-dropout-modules
        self.hidden = cfg.position_target == "hidden"
        self.stretch_range = stretch_range(cfg.position_stretch)
        attach_signal(
            self,
            "positions",
            cfg,
            streams=HIDDEN_STREAMS if self.hidden else SELF_STREAMS,
            side="source",
            dim=cfg.encoder.embed_dim,
            layers_to_keep=cfg.encoder.layers_to_keep,
        )

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        if cfg.position_target == "qkv":
            return _wrapped(PositionBiasedEncoderBlock(cfg, return_fc=self.return_fc), cfg)
        layer = transformer_layer.TransformerEncoderLayerBase(cfg, return_fc=self.return_fc)
        return _wrapped(layer, cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Any]]:
        """As fairseq's: src_tokens [B, S] -> ``encoder_out`` [S, B, C] and its companions."""
        padding_mask = src_tokens.eq(self.padding_idx)
        has_pads = bool(padding_mask.any())
        embedded, embedding = self.embed(src_tokens, token_embeddings)
        blocks = all_blocks(self)
        stretch = None
        if self.training and self.stretch_range is not None:
            stretch = Stretch.drawn(self.stretch_range, len(src_tokens), src_tokens.device)
        rows = BlockRows(
            self.positions,
            blocks,
            "positions",
            _positions(padding_mask, has_pads),
            src_tokens.size(1),
            embedded.dtype,
            stretch,
        )
        if self.hidden:
            embedded = rows.add_to(embedded.transpose(0, 1), blocks[0]).transpose(0, 1)
        x = self._finished_embedding(embedded)
        if has_pads:
            x = x * (1 - padding_mask.unsqueeze(-1).type_as(x))
        x = x.transpose(0, 1)  # [S, B, C]

        states, fc_results = [x] if return_all_hiddens else [], []
        mask = padding_mask if has_pads else None
        for layer in self.layers:
            if not self.hidden:
                x = layer(
                    x,
                    encoder_padding_mask=mask,
                    position_table=rows.table(layer),
                    positions=rows.positions,
                )
            else:
                if layer is not blocks[0]:
                    x = rows.add_to(x, layer)
                x = layer(x, encoder_padding_mask=mask)
            x, fc_result = x if isinstance(x, tuple) else (x, None)
            if return_all_hiddens:
                states.append(x)
                fc_results.append(fc_result)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        lengths = (~padding_mask).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": fc_results,
            "src_tokens": [],
            "src_lengths": [lengths],
            # Of training only: the decoder counts in the same stretched tokens.
            STRETCH: [] if stretch is None else [stretch],
        }

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """As fairseq's; notes when a search makes ``beam_size`` copies of each sentence."""
        reordered: dict[str, list[Any]] = super().reorder_encoder_out(encoder_out, new_order)
        reordered[BEAM] = []  # any other order may have mixed the copies
        sentences = encoder_out["encoder_out"][0].size(1) if encoder_out["encoder_out"] else 0
        copies = len(new_order) // max(sentences, 1)
        if copies > 1:
            each = torch.arange(sentences, device=new_order.device).repeat_interleave(copies)
            reordered[BEAM] = [copies] if torch.equal(new_order, each) else []
        return reordered

    def register_backward_hook(self, hook: Any) -> RemovableHandle:
        """As a full hook, for fairseq's NanDetector.

        torch looks for a tensor among the values of an output that is a dict; here and in fairseq's
        own encoder all are lists, and it dies of a StopIteration.
        """
        return self.register_full_backward_hook(hook)

    def embed(self, src_tokens: Tensor, token_embeddings: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scaled token embeddings with fairseq's base positions, and without: [B, S, C] each."""
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(src_tokens)
        embedding = self.embed_scale * token_embeddings
        if self.embed_positions is None:
            return embedding, embedding
        return embedding + self.embed_positions(src_tokens), embedding

    def _finished_embedding(self, x: Tensor) -> Tensor:
        """What fairseq does to the sum of embedding and positions, in its order."""
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        return x if self.quant_noise is None else self.quant_noise(x)

    def max_positions(self) -> int:
        return _limit(self, self.positions, self.cfg.encoder.learned_pos)


class FloaterDecoder(TransformerDecoderBase):
    """fairseq's decoder; ``positions`` counts target tokens, ``source_positions`` source tokens.

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
            _with_base(cfg), dictionary, embed_tokens, no_encoder_attn, output_projection
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
            return _wrapped(PositionBiasedDecoderBlock(cfg, no_encoder_attn), cfg)
        return _wrapped(transformer_layer.TransformerDecoderLayerBase(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """As fairseq's: prev_output_tokens [B, T] -> features [B, T, C] and ``attn``, ``inner_states``.

        Step by step, only the last token is computed; its position counts all tokens before it.
        """
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        source = (
            encoder_out["encoder_out"][0] if encoder_out and encoder_out["encoder_out"] else None
        )
        stretch = next(iter(encoder_out.get(STRETCH, ())), None) if encoder_out else None
        beam_size = next(iter(encoder_out.get(BEAM, ())), 1) if encoder_out else 1
        source_mask = None
        if encoder_out and encoder_out["encoder_padding_mask"]:
            source_mask = encoder_out["encoder_padding_mask"][0]

        padding_mask = prev_output_tokens.eq(self.padding_idx)
        if incremental_state is not None:
            positions = token_positions(padding_mask)[:, -1:]
            padding_mask = padding_mask[:, -1:]
        has_pads = bool(padding_mask.any())
        if incremental_state is None:
            positions = _positions(padding_mask, has_pads)
        embedded = self._embed(prev_output_tokens, incremental_state)
        blocks = all_blocks(self)
        rows = BlockRows(
            self.positions,
            blocks,
            "positions",
            positions,
            prev_output_tokens.size(1),
            embedded.dtype,
            stretch,
            begins=not incremental_state,
        )
        source_rows = None
        if not source_is_cached(blocks[0], incremental_state):
            source_rows = self._source_rows(source, source_mask, blocks, embedded.dtype, stretch)
        x = embedded.transpose(0, 1)  # [T, B, C]
        if self.hidden:
            x = rows.add_to(x, blocks[0])
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)

        causal = incremental_state is None and not full_context_alignment
        attn: Tensor | None = None
        inner_states: list[Tensor | None] = [x]
        for idx, layer in enumerate(self.layers):
            kwargs: dict[str, Any] = {}
            if not self.hidden:
                kwargs = {"position_table": rows.table(layer), "positions": rows.positions}
                kwargs["beam_size"] = beam_size
                if source_rows is not None:
                    kwargs["source_table"] = source_rows.table(layer)
                    kwargs["source_positions"] = source_rows.positions
            elif layer is not blocks[0]:
                x = rows.add_to(x, layer)
            x, layer_attn, _ = layer(
                x,
                source,
                source_mask,
                incremental_state,
                self_attn_mask=self.buffered_future_mask(x) if causal else None,
                self_attn_padding_mask=(
                    padding_mask if self.cross_self_attention or has_pads else None
                ),
                need_attn=idx == alignment_layer,
                need_head_weights=idx == alignment_layer,
                **kwargs,
            )
            inner_states.append(x)
            if layer_attn is not None and idx == alignment_layer:
                attn = layer_attn.float().to(x)
        if attn is not None:  # [H, B, T, S] -> mean over the heads asked for
            attn = (attn if alignment_heads is None else attn[:alignment_heads]).mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def _embed(self, tokens: Tensor, incremental_state: IncrementalState | None) -> Tensor:
        """Token embeddings with fairseq's base positions, of all tokens or the last: [B, T, C]."""
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
        self,
        source: Tensor | None,
        source_mask: Tensor | None,
        blocks: list[nn.Module],
        dtype: torch.dtype,
        stretch: Stretch | None,
    ) -> BlockRows | None:
        if self.source_positions is None or source is None:
            return None
        if source_mask is None:
            source_mask = source.new_zeros(source.size(1), source.size(0), dtype=torch.bool)
        return BlockRows(
            self.source_positions,
            blocks,
            "source_positions",
            token_positions(source_mask),
            source.size(0),
            dtype,
            stretch,
        )

    def max_positions(self) -> int:
        return _limit(self, self.positions, self.cfg.decoder.learned_pos)


def _with_base(cfg: Any) -> Any:
    """``cfg`` as the base class should see it: encoders that replace the sinusoid switch it off."""
    if not POSITION_ENCODERS[cfg.position_encoder].keeps_base:
        cfg.no_token_positional_embeddings = True
    return cfg


def _wrapped(layer: nn.Module, cfg: Any) -> nn.Module:
    """Checkpointing and sharding around a block, as fairseq's own stacks do it."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # fairseq shards a checkpointed layer whatever its size; without fairscale this is a no-op.
    wrapped: nn.Module = fsdp_wrap(
        layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    )
    return wrapped


def _positions(padding_mask: Tensor, has_pads: bool) -> Tensor:
    """[B, T], or [1, T] where no padding moves a token: the same row for every sentence."""
    return token_positions(padding_mask if has_pads else padding_mask[:1])


def _limit(stack: Any, signal: PositionSignal, learned_base: bool) -> int:
    """Longest input: the encoder's own limit and, underneath, that of a *learned* base."""
    if stack.embed_positions is None or not learned_base:
        return signal.max_positions
    return min(signal.max_positions, stack.embed_positions.max_positions, UNLIMITED_POSITIONS)
