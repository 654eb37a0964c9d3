"""Register the encoder-only model: fairseq's RoBERTa, in its named shapes, with a choice of encoders.

Heads, masked language model and hub interface are fairseq's, state-dict names included; new are
``encoder.sentence_encoder.positions`` and ``encoder.sentence_encoder.layers.N.positions``.

The base underneath is RoBERTa's learned table, with three exceptions. ``sinusoidal`` is a base itself:
fairseq's sinusoid takes the table's place. ``learned`` is a table, one a block, and replaces it. ``none``
and the encoders that act inside attention have none, unless ``--position-base keep`` asks for it.
"""

from __future__ import annotations

import argparse
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import PositionalEmbedding
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import nn

from fairseq_floater import position_encoders
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.rules import ONE_STACK
from fairseq_floater.transformer.bert import (
    FAIRSEQ_EPS,
    add_layer_norm_eps,
    set_layer_norm_eps,
)
from fairseq_floater.transformer.encoder import PositionedEncoder
from fairseq_floater.transformer.positioned_model import PositionedModel, completed
from fairseq_floater.transformer.shapes import ROBERTA_ARCHITECTURES, ROBERTA_SIZES
from fairseq_floater.transformer.stack_positions import with_base

MODEL = "floater_roberta"


class PositionedSentenceEncoder(PositionedEncoder):
    """Hold RoBERTa's blocks, which take positions once the Transformer around them is initialised.

    Until then it is fairseq's, table included: it draws the same random numbers, so that under one
    seed it starts as fairseq's own whatever the position encoder, and fairseq's initialisation of
    every linear map and embedding meets none of the position encoder's.
    """

    length_option = "--max-positions"
    fills_length = True

    def attach_positions(self, cfg: Any) -> None:
        """Leave that to :meth:`take_positions`."""

    def take_positions(self) -> None:
        """Put what the options ask for in the place of RoBERTa's table, and attach the encoder."""
        cfg = with_base(self.cfg, "source")
        if cfg.no_token_positional_embeddings:
            self.embed_positions = None
        elif not cfg.encoder.learned_pos:
            self.embed_positions = PositionalEmbedding(
                cfg.max_source_positions, cfg.encoder.embed_dim, self.padding_idx, learned=False
            )
        super().attach_positions(cfg)


class PositionedRobertaEncoder(RobertaEncoder):
    """Extend fairseq's RoBERTa encoder by positions for its blocks."""

    sentence_encoder: PositionedSentenceEncoder

    def build_encoder(
        self, args: argparse.Namespace, dictionary: Any, embed_tokens: nn.Embedding
    ) -> PositionedSentenceEncoder:
        cfg = TransformerConfig.from_namespace(args)
        cfg.decoder.layers = 0  # fairseq names a number, and `--position-blocks` would count them
        base = cfg.no_token_positional_embeddings, cfg.encoder.learned_pos
        cfg.no_token_positional_embeddings, cfg.encoder.learned_pos = False, True
        encoder = PositionedSentenceEncoder(cfg, dictionary, embed_tokens)
        encoder.apply(init_bert_params)
        cfg.no_token_positional_embeddings, cfg.encoder.learned_pos = base
        return encoder

    def max_positions(self) -> int:
        """Return the longest input: the position encoder's limit and that of a table underneath."""
        return self.sentence_encoder.max_positions()


@register_model(MODEL)
class FloaterRobertaModel(PositionedModel, RobertaModel):
    """Extend fairseq's RoBERTa by a choice of position encoders (``--position-encoder``)."""

    encoder: PositionedRobertaEncoder

    @classmethod
    def hub_models(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        add_layer_norm_eps(parser, FAIRSEQ_EPS)
        parser.add_argument(  # an option of fairseq's Transformer, but not of its RoBERTa
            "--no-token-positional-embeddings",
            action="store_true",
            help="without RoBERTa's learned table underneath",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> FloaterRobertaModel:
        """Build the model for ``args``, a Namespace or Hydra's DictConfig.

        Raises:
            ValueError: an unknown or inconsistent option, or one that positions cannot go with.
        """
        args = completed(args, ONE_STACK)
        if getattr(args, "max_positions", None) is None:
            if getattr(args, "tokens_per_sample", None) is None:
                args.tokens_per_sample = task.max_positions()
            args.max_positions = args.tokens_per_sample
        _complete_shape(args)
        model = cls(args, PositionedRobertaEncoder(args, task.source_dictionary))
        set_layer_norm_eps(model, getattr(args, "layer_norm_eps", None) or FAIRSEQ_EPS)
        model.encoder.sentence_encoder.take_positions()
        model.apply_training_options(args)
        return model


def _complete_shape(args: argparse.Namespace) -> None:
    """Fill in fairseq's defaults; an encoder that is a base itself takes the place of RoBERTa's table."""
    if POSITION_ENCODERS[args.position_encoder].base == "itself":
        args.encoder_learned_pos = False
    base_architecture(args)


def _register(name: str) -> None:
    channels, blocks, heads, inner = ROBERTA_SIZES[name]
    sizes = {
        "encoder_embed_dim": channels,
        "encoder_layers": blocks,
        "encoder_attention_heads": heads,
        "encoder_ffn_embed_dim": inner,
    }

    @register_model_architecture(MODEL, name)
    def architecture(args: Any) -> None:
        for dest, size in sizes.items():
            if getattr(args, dest, None) is None:
                setattr(args, dest, size)
        position_encoders.complete(args)
        _complete_shape(args)


for _name in ROBERTA_ARCHITECTURES:
    _register(_name)
