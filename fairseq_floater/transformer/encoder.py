"""Give positions to the blocks of the encoder.

The class is a subclass of fairseq's, with its parameters, their names and its interface. It overrides
the loop over the blocks, where positions enter, and how a beam search reorders the output.

Letters: S source tokens, B sentences, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairseq_floater.position_encoders.eval_law import EvalLaw
from fairseq_floater.position_encoders.segments import segment_reader
from fairseq_floater.position_encoders.signal import encoder_streams
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.position_encoders.warp import warp_of_source
from fairseq_floater.position_encoders.warp_law import WarpLaw
from fairseq_floater.transformer.blocks import PositionBiasedEncoderBlock
from fairseq_floater.transformer.decoding_cache import NewOrder
from fairseq_floater.transformer.masks import additive_mask, summed, window_mask
from fairseq_floater.transformer.prepared import PreparedPositions
from fairseq_floater.transformer.stack_positions import (
    BEAM,
    WARP,
    all_blocks,
    attach_encoder,
    check_base_length,
    longest_input,
    prepare,
    wrapped,
)


class PositionedEncoder(TransformerEncoderBase):
    """Extend fairseq's encoder by ``positions``, an encoder of source positions."""

    length_option = "--max-source-positions"
    fills_length = False

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens)
        self.dropout_module.module_name = "TransformerEncoder"  # for --retain-dropout-modules
        self.warp_law, self.eval_law = WarpLaw.read(cfg), EvalLaw.read(cfg)
        self.segments_of = segment_reader(cfg, dictionary, "source")
        self.attach_positions(cfg)

    def attach_positions(self, cfg: Any) -> None:
        """Build the position encoder and the blocks' parts of it."""
        streams = encoder_streams(cfg.position_target)
        # The random state comes back, so the Transformer's initialisation and dropout stay fairseq's.
        with torch.random.fork_rng(devices=[]):
            attach_encoder(
                self, "positions", cfg, streams=streams, side="source", shape=cfg.encoder
            )

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        return wrapped(PositionBiasedEncoderBlock(cfg), cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Any]]:
        """Compute src_tokens [B, S] -> ``encoder_out`` [S, B, C] and the rest of fairseq's dict."""
        padding_mask = src_tokens.eq(self.padding_idx)
        check_base_length(self, padding_mask)
        embedded, embedding = self.embed(src_tokens, token_embeddings)
        warp = warp_of_source(
            self.warp_law, padding_mask, self.training, src_lengths, self.eval_law
        )
        if self.segments_of is not None:
            warp = self.segments_of(src_tokens)
        tokens = Tokens.read(padding_mask, warp=warp)
        positions = prepare(self, "positions", tokens, embedded.dtype, src_tokens)
        embedded = positions.enter(embedded.transpose(0, 1), all_blocks(self)[0]).transpose(0, 1)
        x = self._finished_embedding(embedded)
        mask = window_mask(self, tokens, x.dtype)
        if tokens.has_padding:
            x = x * (1 - padding_mask.unsqueeze(-1).type_as(x))
            hidden = additive_mask(padding_mask[:, None, None], x.dtype)
            mask = summed(hidden, mask)
        x, states = self._through_blocks(x.transpose(0, 1), mask, positions, return_all_hiddens)
        lengths = (~padding_mask).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [lengths],
            # The decoder moves its tokens in the same way.
            WARP: [] if warp is None else [warp],
        }

    def longer_side(self, src_tokens: Tensor, tgt_tokens: Tensor) -> Tensor | None:
        """Return the tokens of the longer side [B], if a shift of both must leave room for it."""
        if self.warp_law is None or self.warp_law.shift is None or not self.warp_law.shift.fill:
            return None
        both = (src_tokens, tgt_tokens)
        return torch.maximum(*(tokens.ne(self.padding_idx).sum(1) for tokens in both))

    def _through_blocks(
        self, x: Tensor, mask: Tensor | None, positions: PreparedPositions, return_all_hiddens: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Pass ``x`` [S, B, C] through the blocks.

        Returns:
            The output [S, B, C]; with ``return_all_hiddens`` also the input of the first block and the
            output of each.
        """
        first = all_blocks(self)[0]
        states: list[Tensor] = [x] if return_all_hiddens else []
        for layer in self.layers:
            if layer is not first:
                x = positions.enter(x, layer)
            x = layer(x, None, positions.mask(layer, mask), *positions.tables(layer))
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x, states

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """Reorder as fairseq does, and note that a search made ``beam_size`` copies of each sentence.

        An order that only permutes the copies of a sentence changes nothing.
        """
        rows = encoder_out["encoder_out"][0].size(1) if encoder_out["encoder_out"] else 0
        beam = next(iter(encoder_out.get(BEAM, ())), 1)
        if beam > 1:
            order, copies = NewOrder(new_order).of_sentences(rows // beam, beam)
            if order is None:
                return encoder_out
        else:
            copies = len(new_order) // max(rows, 1)
            each = torch.arange(rows, device=new_order.device).repeat_interleave(copies)
            copies = copies if torch.equal(new_order, each) else 1
        reordered: dict[str, list[Any]] = super().reorder_encoder_out(encoder_out, new_order)
        reordered[WARP] = [warp.reordered(new_order) for warp in encoder_out.get(WARP, ())]
        reordered[BEAM] = [copies] if copies > 1 else []
        return reordered

    def register_backward_hook(self, hook: Any) -> RemovableHandle:
        """Register a full hook instead, for fairseq's NanDetector.

        For a plain hook torch searches an output dict for a tensor. Here, as in fairseq, all values are
        lists, and torch would raise StopIteration.
        """
        return self.register_full_backward_hook(hook)

    def embed(self, src_tokens: Tensor, token_embeddings: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens with and without fairseq's own positions: [B, S, C] each."""
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(src_tokens)
        embedding = self.embed_scale * token_embeddings
        if self.embed_positions is None:
            return embedding, embedding
        return embedding + self.embed_positions(src_tokens), embedding

    def _finished_embedding(self, x: Tensor) -> Tensor:
        """Apply layer norm, dropout and quantisation noise in fairseq's order."""
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        return x if self.quant_noise is None else self.quant_noise(x)

    def max_positions(self) -> int:
        return longest_input(self, self.positions, self.cfg.encoder.learned_pos)
