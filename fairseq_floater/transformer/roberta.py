"""Register the encoder-only model: fairseq's RoBERTa in its named shapes, with any position encoder.

Heads, masked language model, hub interface and names in the state dict are fairseq's. The new names are
``encoder.sentence_encoder.positions`` and ``encoder.sentence_encoder.layers.N.positions``.

RoBERTa's learned position table stays at the input, with three exceptions. ``sinusoidal`` replaces it by
fairseq's sinusoid. ``learned`` replaces it by a table in each block. ``none`` and the encoders that act
inside attention drop it, unless ``--position-base keep`` asks for it.
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
from fairseq_floater.position_encoders.rules import ENCODER_ALONE
from fairseq_floater.transformer.bert import (
    FAIRSEQ_EPS,
    add_layer_norm_eps,
    set_layer_norm_eps,
)
from fairseq_floater.transformer.encoder import PositionedEncoder
from fairseq_floater.transformer.positioned_model import PositionedModel, completed
from fairseq_floater.transformer.shapes import ROBERTA_ARCHITECTURES, ROBERTA_SHAPE, ROBERTA_SIZES
from fairseq_floater.transformer.stack_positions import with_base

MODEL = "floater_roberta"


class PositionedSentenceEncoder(PositionedEncoder):
    """Hold RoBERTa's blocks, which get positions only after the Transformer is initialised.

    Until then it equals fairseq's encoder, table included, and draws the same random numbers. So under
    one seed it starts like fairseq's with every position encoder. fairseq's initialisation of linear
    layers and embeddings does not touch the position encoder's.
    """

    length_option = "--max-positions"
    fills_length = True

    def attach_positions(self, cfg: Any) -> None:
        """Do nothing: :meth:`take_positions` attaches the position encoder later."""

    def take_positions(self) -> None:
        """Replace RoBERTa's table as the options ask, and attach the position encoder."""
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
        cfg.decoder.layers = 0  # fairseq sets a number, and `--position-blocks` would count these
        base = cfg.no_token_positional_embeddings, cfg.encoder.learned_pos
        cfg.no_token_positional_embeddings, cfg.encoder.learned_pos = False, True
        encoder = PositionedSentenceEncoder(cfg, dictionary, embed_tokens)
        encoder.apply(init_bert_params)
        cfg.no_token_positional_embeddings, cfg.encoder.learned_pos = base
        return encoder

    def max_positions(self) -> int:
        """Return the longest input that both the position encoder and a learned table allow."""
        return self.sentence_encoder.max_positions()


@register_model(MODEL)
class FloaterRobertaModel(PositionedModel, RobertaModel):
    """Extend fairseq's RoBERTa by a choice of position encoders (``--position-encoder``)."""

    encoder: PositionedRobertaEncoder

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        add_layer_norm_eps(parser, FAIRSEQ_EPS)
        parser.add_argument(  # an option of fairseq's Transformer, but not of its RoBERTa
            "--no-token-positional-embeddings",
            action="store_true",
            help="leave out RoBERTa's learned table of positions",
        )

    @classmethod
    def build_model(cls, args: Any, task: Any) -> FloaterRobertaModel:
        """Build the model for ``args``, a Namespace or Hydra's DictConfig; :func:`completed` checks them."""
        args = completed(args, ENCODER_ALONE, cls)
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
    """Fill in fairseq's defaults; an encoder with base ``itself`` replaces RoBERTa's learned table."""
    if POSITION_ENCODERS[args.position_encoder].base == "itself":
        args.encoder_learned_pos = False
    base_architecture(args)


def _register(name: str) -> None:
    sizes = dict(zip(ROBERTA_SHAPE, ROBERTA_SIZES[name]))

    @register_model_architecture(MODEL, name)
    def architecture(args: Any) -> None:
        for dest, size in sizes.items():
            if getattr(args, dest, None) is None:
                setattr(args, dest, size)
        position_encoders.complete(args)
        _complete_shape(args)


for _name in ROBERTA_ARCHITECTURES:
    _register(_name)
