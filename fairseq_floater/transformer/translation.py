"""Register the translation model: fairseq's Transformer, in its named shapes, with a choice of encoders."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.models.transformer import transformer_legacy as fairseq_shapes
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.hooks import RemovableHandle

from fairseq_floater import position_encoders
from fairseq_floater.position_encoders.attention_kind import describe_attention, ignored_dropout
from fairseq_floater.position_encoders.base import PositionEncoder
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.sides import describe_sides
from fairseq_floater.transformer.decoder import FloaterDecoder
from fairseq_floater.transformer.encoder import FloaterEncoder
from fairseq_floater.transformer.shapes import ARCHITECTURES as ARCHITECTURES

MODEL = "floater_transformer"
_SHAPES: dict[str, Callable[[Any], None]] = {
    "transformer": fairseq_shapes.base_architecture,
    "transformer_tiny": fairseq_shapes.tiny_architecture,
    "transformer_iwslt_de_en": fairseq_shapes.transformer_iwslt_de_en,
    "transformer_wmt_en_de": fairseq_shapes.transformer_wmt_en_de,
    "transformer_vaswani_wmt_en_de_big": fairseq_shapes.transformer_vaswani_wmt_en_de_big,
    "transformer_vaswani_wmt_en_fr_big": fairseq_shapes.transformer_vaswani_wmt_en_fr_big,
    "transformer_wmt_en_de_big": fairseq_shapes.transformer_wmt_en_de_big,
}

logger = logging.getLogger(__name__)

# What becomes of `--floater-lr-scale` s where a step depends on the size of gradients or parameters.
_LR_SCALE_BECOMES = {
    "sgd": "s squared",
    "nag": "s squared",
    "adadelta": "another multiple",
    "lamb": "no multiple at all",
    "adafactor --scale-parameter": "no multiple at all",
}


@register_model("floater_transformer")
class FloaterTransformerModel(TransformerModel):
    """Extend fairseq's Transformer by a choice of position encoders (``--position-encoder``)."""

    #: Why the model must not be trained with the optimiser of its arguments, or None.
    not_to_train: str | None = None

    @classmethod
    def hub_models(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        position_encoders.add_args(parser)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> FloaterTransformerModel:
        """Build the model for ``args``, a Namespace or Hydra's DictConfig.

        Raises:
            ValueError: an unknown or inconsistent option, or one that positions cannot go with.
        """
        if isinstance(args, DictConfig):
            args = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
        encoder = position_encoders.complete(args)
        _refuse_unsupported(args)
        details = encoder.describe(position_encoders.encoder_options(args), args.position_target)
        logger.info(
            "position encoder: %s, blocks: %s, target: %s%s%s%s%s",
            args.position_encoder,
            args.position_blocks,
            args.position_target,
            describe_sides(args),
            "" if args.position_combine == ADD else f", combined by {args.position_combine}",
            f" ({details})" if details else "",
            describe_attention(args),
        )
        dropout_warning = ignored_dropout(args)
        if dropout_warning:
            logger.warning(dropout_warning)
        model: FloaterTransformerModel = super().build_model(args, task)
        source, target = model.encoder.positions, model.decoder.positions
        one_dictionary = model.encoder.embed_tokens is model.decoder.embed_tokens
        if one_dictionary and type(source) is type(target):
            target.share_words(source)
        model.not_to_train = _lr_scale_fault(args)
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding) -> FloaterEncoder:
        return FloaterEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> FloaterDecoder:
        cfg = TransformerConfig.from_namespace(args)
        return FloaterDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def set_num_updates(self, num_updates: int) -> None:
        """Pass the number of updates on; fairseq's tasks call this before every update.

        Raises:
            ValueError: the optimiser does not go with ``--floater-lr-scale``. Building the model does
                not raise it: a checkpoint that is evaluated names its optimiser too.
        """
        if self.not_to_train:
            raise ValueError(self.not_to_train)
        super().set_num_updates(num_updates)

    def register_backward_hook(self, hook: Any) -> RemovableHandle:
        """Log how large positions are: fairseq's NanDetector calls this where gradients are not finite."""
        encoders = [module for module in self.modules() if isinstance(module, PositionEncoder)]
        logger.error(
            "Gradients are not finite. The tables of positions of the last batch had the norms %s "
            "(all rows together; float16: the largest entry). If these are large: %s",
            ", ".join(
                f"{e.size:.3g} ({'/'.join(e.spec.streams)}, {e.spec.side})" for e in encoders
            ),
            encoders[0].range_advice,
        )
        handle: RemovableHandle = super().register_backward_hook(hook)
        return handle


def _lr_scale_fault(args: Any) -> str | None:
    """Say why ``--floater-lr-scale`` does not go with the optimiser of ``args``; hydra names none."""
    optimizer = getattr(args, "optimizer", None) or ""
    if optimizer == "adafactor" and getattr(args, "scale_parameter", False):
        optimizer += " --scale-parameter"
    becomes = _LR_SCALE_BECOMES.get(optimizer)
    if becomes is None or args.position_encoder != "floater" or args.floater_lr_scale == 1:
        return None
    return (
        f"`--floater-lr-scale` must be 1 with `--optimizer {optimizer}`, but is {args.floater_lr_scale} "
        f"instead: a multiple s of the rate would become {becomes}. Use adam, adamax, adagrad, or "
        "adafactor without --scale-parameter."
    )


def _refuse_unsupported(args: Any) -> None:
    """Refuse options of fairseq's Transformer that cannot work with positions, with the reason."""
    if getattr(args, "base_layers", 0):
        raise ValueError(
            f"`--base-layers` must be 0, but is {args.base_layers} instead: a BASE layer is no "
            "Transformer block and takes no positions."
        )
    for name in ("encoder_xformers_att_config", "decoder_xformers_att_config"):
        value = getattr(args, name, None)
        if value:
            raise ValueError(
                f"`--{name.replace('_', '-')}` must not be set, but is {value!r} instead: xformers "
                "has no place for positions."
            )
    if getattr(args, "cross_self_attention", False) and args.position_target == "attention":
        raise ValueError(
            "`--cross-self-attention` must be off with `--position-encoder "
            f"{args.position_encoder}`: source and target tokens have no distance from each other."
        )
    if getattr(args, "ddp_backend", None) == "fully_sharded":
        raise ValueError(
            "`--ddp-backend` must not be fully_sharded: the stack reads every block's initial "
            "positions at once, and sharding hides them. Use pytorch_ddp or legacy_ddp."
        )


def _register(name: str, shape: Callable[[Any], None]) -> None:
    @register_model_architecture(MODEL, name)
    def architecture(args: Any) -> None:
        shape(args)
        position_encoders.complete(args)


for _name, _fairseq_name in ARCHITECTURES.items():
    _register(_name, _SHAPES[_fairseq_name])
