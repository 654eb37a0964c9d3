"""Give positions to the blocks of the decoder.

The class is a subclass of fairseq's, with its parameters, their names and its interface. It overrides
the loop over the blocks, where positions enter, and what decoding caches and reorders.

Letters: T target and S source tokens, B sentences, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from fairseq_floater.position_encoders.eval_law import EvalLaw
from fairseq_floater.position_encoders.hooks import IncrementalState
from fairseq_floater.position_encoders.in_attention import AttentionPositions
from fairseq_floater.position_encoders.segments import segment_reader
from fairseq_floater.position_encoders.shared_options import FLOAT32
from fairseq_floater.position_encoders.signal import (
    PositionSignal,
    decoder_streams,
    source_streams,
)
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.position_encoders.warp_law import WarpLaw
from fairseq_floater.transformer.attention import PositionBiasedAttention
from fairseq_floater.transformer.blocks import PositionBiasedDecoderBlock
from fairseq_floater.transformer.decoding_cache import NewOrder, changed_tokens, read_token
from fairseq_floater.transformer.decoding_weights import prepare_projections
from fairseq_floater.transformer.masks import summed, window_mask
from fairseq_floater.transformer.prepared import PreparedPositions
from fairseq_floater.transformer.source import Source
from fairseq_floater.transformer.stack_positions import (
    all_blocks,
    attach_encoder,
    check_base_length,
    longest_input,
    prepare,
    wrapped,
)


class PositionedDecoder(TransformerDecoderBase):
    """Extend fairseq's decoder by ``positions`` of target and ``source_positions`` of source tokens.

    ``source_positions`` acts in cross-attention alone. With ``--position-target qkv`` it biases keys and
    values by the position of their source token. With ``--position-cross relative`` it encodes the
    distances between target and source tokens.
    """

    length_option = "--max-target-positions"
    fills_length = False

    def __init__(
        self,
        cfg: Any,
        dictionary: Any,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
        output_projection: nn.Module | None = None,
    ):
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)
        self._reordered: list[Any] = []
        self.dropout_module.module_name = "TransformerDecoder"  # for --retain-dropout-modules
        self.segments_of = segment_reader(cfg, dictionary, "target")
        self.starts_with_padding = getattr(cfg, "starts_with_padding", False)
        self.warp_law, self.eval_law = WarpLaw.read(cfg), EvalLaw.read(cfg)
        streams = decoder_streams(cfg.position_target, has_cross_attention=not no_encoder_attn)
        self.source_positions: PositionSignal | AttentionPositions | None = None
        shape = cfg.decoder
        of_source = source_streams(cfg, crosses=cfg.cross_self_attention or not no_encoder_attn)
        # The random state comes back afterwards, as in the encoder. Both encoders are built in one fork: in
        # two they would draw the same numbers.
        with torch.random.fork_rng(devices=[]):
            attach_encoder(self, "positions", cfg, streams=streams, side="target", shape=shape)
            if of_source:
                attach_encoder(
                    self, "source_positions", cfg, streams=of_source, side="source", shape=shape
                )

    def build_output_projection(
        self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding
    ) -> None:
        super().build_output_projection(cfg, dictionary, embed_tokens)
        if getattr(cfg, "output_bias", False):
            assert self.output_projection is not None
            self.output_projection.bias = nn.Parameter(torch.zeros(len(dictionary)))

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        return wrapped(PositionBiasedDecoderBlock(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        token_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Compute prev_output_tokens [B, T] -> features [B, T, C] and ``attn``, ``inner_states``.

        Arguments and results are those of fairseq's decoder. ``token_embeddings`` [B, T, C] take the place
        of the embedding's rows.

        In incremental decoding only the last token is computed; its position counts all tokens before it.
        """
        aligns = alignment_layer is not None or alignment_heads is not None
        self._refuse_alignment(full_context_alignment, aligns)
        source = Source.read(encoder_out)
        one_step = incremental_state is not None
        first: Any = all_blocks(self)[0]
        is_padding = prev_output_tokens.eq(self.padding_idx)
        warp = source.warp_of_target(self, is_padding, one_step)
        if self.segments_of is not None:
            warp = self.segments_of(prev_output_tokens)
        tokens = Tokens.read(is_padding, one_step, warp)
        check_base_length(self, tokens.is_padding)
        causal = not (one_step or full_context_alignment)
        embedded = self._embed(prev_output_tokens, tokens, incremental_state, token_embeddings)
        positions = prepare(
            self, "positions", tokens, embedded.dtype, prev_output_tokens, incremental_state
        )
        source_positions = self._prepared_source(source, tokens, incremental_state, embedded.dtype)
        # Only after `prepare`, which reads an empty state as the start of a batch.
        if incremental_state is not None and first.self_attn.has_weights:  # it keeps keys, not sums
            read_token(incremental_state, len(prev_output_tokens), prev_output_tokens.device)
        x = positions.enter(embedded.transpose(0, 1), first)  # [T, B, C]
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        padding_mask = tokens.is_padding[:, -1:] if one_step else tokens.is_padding
        # A causal mask already hides the padding after a sentence.
        shows = tokens.has_padding and not (causal and tokens.padding_behind)
        mask = self.buffered_future_mask(x) if causal else None
        window = window_mask(self, tokens, x.dtype)
        x, attn, inner_states = self._through_blocks(
            self.dropout_module(x),
            source,
            positions,
            source_positions,
            incremental_state,
            mask=summed(mask, window),
            padding_mask=padding_mask if self.cross_self_attention or shows else None,
            alignment_layer=self.num_layers - 1 if alignment_layer is None else alignment_layer,
        )
        if attn is not None:  # [H, B, T, S] -> mean over the chosen heads
            attn = (attn if alignment_heads is None else attn[:alignment_heads]).mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder what the decoder's modules cache, unless every hypothesis continues itself."""
        changed = changed_tokens(incremental_state, new_order)
        if changed == 0:
            return
        known = NewOrder(new_order, changed)
        for module in self._reordered or _reordered_modules(self):
            options = {"known": known} if isinstance(module, PositionBiasedAttention) else {}
            module.reorder_incremental_state(incremental_state, new_order, **options)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """Make fairseq's mask outside ``torch.inference_mode``, since it is cached and training reuses it."""
        with torch.inference_mode(False):
            return super().buffered_future_mask(tensor)

    def make_generation_fast_(
        self, weights: str = FLOAT32, need_attn: bool | None = False, **kwargs: Any
    ) -> None:
        """Prepare for decoding; fairseq calls this if no training will follow."""
        self._check_weights(need_attn, "`--print-alignment` must be left out")
        # A search through all modules would take longer than the reordering.
        self._reordered = _reordered_modules(self)
        prepare_projections(self.output_projection, weights=weights)

    def _refuse_alignment(self, full_context: bool, aligns: bool) -> None:
        if full_context and isinstance(self.positions, AttentionPositions):
            raise ValueError(
                "full_context_alignment must be off with --position-encoder "
                f"{self.positions.name}: in a decoder it has no distances to later tokens."
            )
        self._check_weights(aligns, "alignment_layer and alignment_heads must be None")

    def _check_weights(self, requested: bool | None, rule: str) -> None:
        if requested and self.cfg.linear_cross:
            raise ValueError(f"{rule} with `--linear-cross`, which forms no weights for alignment.")

    def _through_blocks(
        self,
        x: Tensor,
        source: Source,
        positions: PreparedPositions,
        source_positions: PreparedPositions,
        incremental_state: IncrementalState | None,
        *,
        mask: Tensor | None,
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
            if layer is not first:
                x = positions.enter(x, layer)
            of_source = source_positions.tables(layer)
            x, layer_attn, _ = layer(
                x,
                source.states,
                source.padding_mask,
                incremental_state,
                positions.mask(layer, mask),
                padding_mask,
                *positions.tables(layer),
                *of_source,
                source_tables=len(of_source),
                source_bias=source_positions.mask(layer, None),
                need_attn=idx == alignment_layer,
                need_head_weights=idx == alignment_layer,
                beam_size=source.beam_size,
            )
            inner_states.append(x)
            if layer_attn is not None and idx == alignment_layer:
                attn = layer_attn.float().to(x)
        return x, attn, inner_states

    def _embed(
        self,
        words: Tensor,
        tokens: Tokens,
        incremental_state: IncrementalState | None,
        token_embeddings: Tensor | None,
    ) -> Tensor:
        """Embed all ``words`` [B, T], or while decoding the last, and add fairseq's positions: [B, T, C]."""
        base = None
        if self.embed_positions is not None:
            # With a state, fairseq would count padding too.
            state = None if tokens.has_padding else incremental_state
            base = self.embed_positions(words, incremental_state=state)
        if incremental_state is not None:
            words = words[:, -1:]
            base = None if base is None else base[:, -1:]
            token_embeddings = None if token_embeddings is None else token_embeddings[:, -1:]
        if self.starts_with_padding:
            words = words.masked_fill(words == self.dictionary.eos(), self.padding_idx)
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(words.contiguous())
        x = self.embed_scale * token_embeddings
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        return x if base is None else x + base

    def _prepared_source(
        self,
        source: Source,
        tokens: Tokens,
        incremental_state: IncrementalState | None,
        dtype: torch.dtype,
    ) -> PreparedPositions:
        """Prepare positions for cross-attention, unless the blocks' caches already hold the source's."""
        states, mask = source.states, source.padding_mask
        if self.source_positions is None or states is None:
            return PreparedPositions()
        crosses = self.source_positions.spec.crosses
        first: Any = all_blocks(self)[0]
        if not crosses and (first.encoder_attn or first.self_attn).holds_keys(incremental_state):
            return PreparedPositions()
        if mask is None:
            mask = states.new_zeros(states.size(1), states.size(0), dtype=torch.bool)
        keys, name = Tokens.read(mask, warp=source.warp), "source_positions"
        if not crosses:
            return prepare(self, name, keys, dtype)
        return prepare(self, name, tokens, dtype, incremental_state=incremental_state, facing=keys)

    def max_positions(self) -> int:
        return longest_input(self, self.positions, self.cfg.decoder.learned_pos)


def _reordered_modules(decoder: PositionedDecoder) -> list[Any]:
    return [m for m in decoder.modules() if hasattr(m, "reorder_incremental_state")]
