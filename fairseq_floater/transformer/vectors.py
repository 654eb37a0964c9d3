"""Offer the model to PyTorch code without fairseq's tasks: vectors in, vectors out.

Letters: S source and T target tokens, B sentences, C channels.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

from fairseq_floater.position_encoders import foreign_options
from fairseq_floater.position_encoders.hooks import IncrementalState
from fairseq_floater.transformer.positioned_model import PositionedModel, completed
from fairseq_floater.transformer.translation import MODEL, FloaterTransformerModel

# Key of an incremental state for the number of tokens that were read.
READ = "read"
# Options of fairseq's Transformer and of encoders that act on words or in fairseq's commands alone.
WITHOUT_EFFECT = {
    *("share_all_embeddings", "share_decoder_input_output_embed", "adaptive_softmax_cutoff"),
    *("encoder_embed_path", "decoder_embed_path", "decoding_weights"),
    *("position_separator", "position_segments"),
}


class PositionedTransformer(PositionedModel):
    """Take the place of ``torch.nn.Transformer(batch_first=True)``, with any position encoder.

    The decoder is causal. Initialisation and layer norms are fairseq's: no norm follows the last block
    unless ``norm_first``. Dropout acts on the input too. Passes in training count as fairseq's updates, by
    which a flow's solver is measured.

    Args:
        position_encoder: a name of `POSITION_ENCODERS`.
        d_model: C. This and the arguments up to ``norm_first`` are those of torch's class.
        nhead: heads.
        num_encoder_layers: 0: the decoder alone, without cross-attention.
        num_decoder_layers: 0: the encoder alone.
        dim_feedforward: inner width.
        dropout: also of attention weights and inside the feed-forward layers.
        activation: fairseq's ``activation_fn``, or a function of its name such as ``F.gelu``.
        norm_first: whether layer norms come before attention and feed-forward layers.
        batch_first: must be True.
        options: of the encoders and of fairseq's Transformer, such as ``floater_relative="xl"``.

    Raises:
        TypeError: an option has an unknown name.
        ValueError: options that exclude each other, have no effect, or need words; or no layers.
    """

    def __init__(
        self,
        position_encoder: str,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        norm_first: bool = False,
        *,
        batch_first: bool = True,
        **options: Any,
    ):
        super().__init__()
        if not batch_first:
            raise ValueError("batch_first must be True: the model computes [B, T, C].")
        self._passes = 0
        parser = argparse.ArgumentParser()
        FloaterTransformerModel.add_args(parser)
        unknown = [name for name in options if name not in {a.dest for a in parser._actions}]
        if unknown:
            raise TypeError(f"Unknown options: {', '.join(unknown)}.")
        args = argparse.Namespace(
            position_encoder=position_encoder,
            activation_fn=getattr(activation, "__name__", activation),
            dropout=dropout,
            attention_dropout=dropout,
            activation_dropout=dropout,
            no_scale_embedding=True,
        )
        depths = {"encoder": num_encoder_layers, "decoder": num_decoder_layers}
        if not any(depths.values()):
            raise ValueError("num_encoder_layers and num_decoder_layers must not both be 0.")
        for side, layers in depths.items():
            setattr(args, f"{side}_layers", layers)
            setattr(args, f"{side}_embed_dim", d_model)
            setattr(args, f"{side}_attention_heads", nhead)
            setattr(args, f"{side}_ffn_embed_dim", dim_feedforward)
            setattr(args, f"{side}_normalize_before", norm_first)
        vars(args).update(options)
        if not num_encoder_layers:
            args.no_cross_attention = True
        ARCH_CONFIG_REGISTRY[MODEL](args)
        self.args = completed(args, tuple(stack for stack in depths if depths[stack]))
        _check_effects(args, options)
        self._build()
        self.apply_training_options(args)

    def _build(self) -> None:
        """Build the stacks as the translation model does, without what reads and writes words."""
        args, symbols = self.args, Dictionary()  # the stacks ask for the index of padding
        embedding = nn.Embedding(len(symbols), args.encoder_embed_dim, symbols.pad())
        self.encoder: Any = None
        self.decoder: Any = None
        if args.encoder_layers:
            self.encoder = FloaterTransformerModel.build_encoder(args, symbols, embedding)
            del self.encoder.embed_tokens
        if args.decoder_layers:
            self.decoder = FloaterTransformerModel.build_decoder(args, symbols, embedding)
            self.decoder.output_projection = nn.Identity()
            del self.decoder.embed_tokens

    def forward(
        self,
        src: Tensor,
        tgt: Tensor | None = None,
        *,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Compute src [B, S, C] and tgt [B, T, C] -> [B, T, C]; without tgt, the encoder's [B, S, C].

        The masks, [B, S] and [B, T], are true at padding. A decoder alone has :meth:`decode` instead.
        """
        if tgt is None:
            return self.encode(src, src_key_padding_mask)["encoder_out"][0].transpose(0, 1)
        self._require("encoder")
        self._require("decoder")
        self._count_pass()
        src, src_tokens = self._read(src, src_key_padding_mask)
        tgt, tgt_tokens = self._read(tgt, tgt_key_padding_mask)
        lengths = self.encoder.longer_side(src_tokens, tgt_tokens)
        memory = self.encoder(src_tokens, lengths, token_embeddings=src)
        return self._decoded(tgt, tgt_tokens, memory)

    def encode(
        self, src: Tensor, src_key_padding_mask: Tensor | None = None
    ) -> dict[str, list[Any]]:
        """Return fairseq's output of the encoder for src [B, S, C], which :meth:`decode` takes."""
        self._require("encoder")
        self._count_pass()
        src, tokens = self._read(src, src_key_padding_mask)
        return self.encoder(tokens, token_embeddings=src)

    def decode(
        self,
        tgt: Tensor,
        memory: dict[str, list[Any]] | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        state: IncrementalState | None = None,
    ) -> Tensor:
        """Compute tgt [B, T, C] -> [B, T, C]; without ``memory`` in a decoder alone.

        With ``state``, the last token's output is returned, [B, 1, C]. The state begins as an empty dict and
        keeps the keys of earlier calls, whose tokens ``tgt`` repeats. Several new tokens, as of a prompt, are
        read one after the other.

        Raises:
            ValueError: no decoder, memory for a decoder alone, or none for a model with an encoder; or no
                new token.
        """
        self._require("decoder")
        if (memory is None) != (self.encoder is None):
            raise ValueError("memory must be the output of `encode`, or None for a decoder alone.")
        if self.encoder is None:
            self._count_pass()
        tgt, tokens = self._read(tgt, tgt_key_padding_mask)
        if state is None:
            return self._decoded(tgt, tokens, memory)
        before, length = state.get(READ, {}).get(READ), tgt.size(1)
        read = 0 if before is None else int(before)
        if length <= read:
            raise ValueError(f"tgt must have more than the {read} tokens of the earlier calls.")
        for t in range(read + 1, length + 1):
            last = self._decoded(tgt[:, :t], tokens[:, :t], memory, state)
        # Only now: the decoder reads an empty state as the start.
        state[READ] = {READ: torch.tensor(length)}
        return last

    def load_state_dict(
        self, state_dict: MutableMapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load weights as torch does. fairseq takes weights without its version numbers for an old format."""
        completed = copy.copy(state_dict)  # with its metadata
        for name, number in self.named_buffers():
            if name.endswith(".version"):
                completed.setdefault(name, number)
        self._passes = 0
        return nn.Module.load_state_dict(self, completed, strict, assign)

    def _count_pass(self) -> None:
        # As a decorator, `disable` would import the compiler with this module.
        if torch.compiler.is_dynamo_compiling():
            torch.compiler.disable(self._count_pass)()
            return
        if self.training and torch.is_grad_enabled():
            self.set_num_updates(self._passes)
            self._passes += 1

    def _require(self, stack: str) -> None:
        if getattr(self, stack) is None:
            raise ValueError(f"The model has no {stack}: num_{stack}_layers is 0.")

    def _decoded(
        self,
        tgt: Tensor,
        tokens: Tensor,
        memory: dict[str, list[Any]] | None,
        state: IncrementalState | None = None,
    ) -> Tensor:
        sentences = len(tgt) if memory is None else memory["encoder_out"][0].size(1)
        if sentences != len(tgt):
            raise ValueError(
                f"src and tgt must have equally many sentences, but have {sentences} and {len(tgt)}."
            )
        features, _ = self.decoder.extract_features_scriptable(
            tokens, memory, state, token_embeddings=tgt
        )
        return features

    def _read(self, x: Tensor, is_padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Check an input, and return it with the indices that the stacks read padding from, [B, T]."""
        width, shape = self.args.encoder_embed_dim, x.shape[:2]
        if x.dim() != 3 or x.size(2) != width:
            raise ValueError(f"src and tgt must be [B, T, {width}], but one is {[*x.shape]}.")
        if self.args.checkpoint_activations and torch.is_grad_enabled() and not x.requires_grad:
            x = x.detach().requires_grad_()  # else fairseq would compute no gradient of the blocks
        stack = self.decoder if self.encoder is None else self.encoder
        symbols = stack.dictionary
        tokens = x.new_full(shape, symbols.eos(), dtype=torch.long)
        if is_padding is None:
            return x, tokens
        if is_padding.dtype != torch.bool or is_padding.shape != shape:
            raise ValueError(
                f"The mask of padding must be bool {[*shape]}, but is {is_padding.dtype} "
                f"{[*is_padding.shape]}."
            )
        return x, tokens.masked_fill(is_padding, symbols.pad())


def _check_effects(args: argparse.Namespace, options: Iterable[str]) -> None:
    """Raise ValueError if an option among ``options``, or its default, cannot act here."""
    for name in sorted(WITHOUT_EFFECT.intersection(options)):
        raise ValueError(
            f"`{name}` must be left out: it acts on words or in fairseq's commands alone."
        )
    flags = [f"--{name.replace('_', '-')}" for name in options]
    for flag, readers in foreign_options(args.position_encoder, flags).items():
        raise ValueError(f"`{flag}` has no effect: it is an option of {', '.join(readers)}.")
    if args.position_encoder == "complex" and args.complex_omega == "word":
        raise ValueError(
            "`complex_omega` must be shared or fixed, but is word: the model sees no words."
        )
