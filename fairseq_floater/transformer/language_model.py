"""Register the decoder-only model: fairseq's language model in its named shapes, with any position encoder.

``fairseq-eval-lm`` and ``fairseq-generate --task language_modeling`` take it. Names in the state dict are
fairseq's; the new ones are ``decoder.positions`` and ``decoder.layers.N.positions``.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY, register_model
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from omegaconf import DictConfig, open_dict

from fairseq_floater.position_encoders.rules import DECODER_ALONE
from fairseq_floater.transformer.decoder import PositionedDecoder
from fairseq_floater.transformer.positioned_model import PositionedModel, completed, register_shape
from fairseq_floater.transformer.shapes import MAX_POSITIONS
from fairseq_floater.transformer.stack_positions import with_base

MODEL = "floater_transformer_lm"


@register_model(MODEL)
class FloaterLanguageModel(PositionedModel, TransformerLanguageModel):
    """Extend fairseq's language model by a choice of position encoders (``--position-encoder``)."""

    decoder: PositionedDecoder

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> FloaterLanguageModel:
        """Build the model for ``args``, a Namespace or Hydra's DictConfig; :func:`completed` checks them."""
        given, args = args, completed(args, DECODER_ALONE, cls)
        _complete_shape(args, task)
        if isinstance(given, DictConfig):
            # The checkpoint keeps these, and the task that loads it may have another length.
            with open_dict(given):
                given.tokens_per_sample = args.tokens_per_sample
                given.max_target_positions = args.max_target_positions
        args.encoder_layers = 0  # else `--position-blocks` would count fairseq's default, six
        model: FloaterLanguageModel = super().build_model(args, task)
        model.args, model.decoder = args, _positioned(model.decoder)
        model.apply_training_options(args)
        return model


def _complete_shape(args: argparse.Namespace, task: Any) -> None:
    """Fill in fairseq's defaults, which its dataclass holds; ``${task.x}`` is the value of option x.

    Under Hydra, options of the task are not in ``args``.
    """
    places = (args, getattr(task, "args", None))
    for option in dataclasses.fields(TransformerLanguageModelConfig):
        if getattr(args, option.name, None) is None:
            default = option.default
            if isinstance(default, str) and default.startswith("${"):
                name = default.strip("${}").rpartition(".")[2]
                values = (getattr(place, name, None) for place in places)
                default = next((value for value in values if value is not None), None)
            setattr(args, option.name, default)
    # A checkpoint of Hydra's that is built again without its task has no length.
    args.tokens_per_sample = args.tokens_per_sample or MAX_POSITIONS


def _positioned(decoder: TransformerDecoderBase) -> PositionedDecoder:
    """Return fairseq's decoder with positions; its parameters and the random state stay fairseq's."""
    cfg = with_base(decoder.cfg, "target")
    with torch.random.fork_rng(devices=[]):
        positioned = PositionedDecoder(
            cfg, decoder.dictionary, decoder.embed_tokens, no_encoder_attn=True
        )
    positioned.load_state_dict(decoder.state_dict(), strict=False)
    return positioned


for _name in ARCH_MODEL_INV_REGISTRY["transformer_lm"]:
    register_shape(MODEL, f"floater_{_name}", ARCH_CONFIG_REGISTRY[_name])
