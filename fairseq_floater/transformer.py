"""The model: fairseq's Transformer with a choice of position encoders."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.hooks import RemovableHandle

from fairseq_floater import position_encoders
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.base import PositionSignal
from fairseq_floater.stacks import FloaterDecoder, FloaterEncoder

logger = logging.getLogger(__name__)


@register_model("floater_transformer")
class FloaterTransformerModel(TransformerModel):
    """fairseq's Transformer with a choice of position encoders (``--position-encoder``)."""

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
        position_encoders.complete(args)
        _refuse_unsupported(args)
        encoder = POSITION_ENCODERS[args.position_encoder]
        details = encoder.describe(position_encoders.encoder_options(args), args.position_target)
        logger.info(
            "position encoder: %s, blocks: %s, target: %s%s",
            args.position_encoder,
            args.position_blocks,
            args.position_target,
            f" ({details})" if details else "",
        )
        model: FloaterTransformerModel = super().build_model(args, task)
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding) -> FloaterEncoder:
        return FloaterEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> FloaterDecoder:
        cfg = TransformerConfig.from_namespace(args)
        return FloaterDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def register_backward_hook(self, hook: Any) -> RemovableHandle:
        """Called by fairseq's NanDetector, where gradients are not finite: tells how large positions are."""
        signals = [module for module in self.modules() if isinstance(module, PositionSignal)]
        logger.error(
            "Gradients are not finite. The tables of positions of the last batch had the norms %s "
            "(all rows together; float16: the largest entry). If these are large: %s",
            ", ".join(f"{s.size:.3g} ({'/'.join(s.spec.streams)}, {s.spec.side})" for s in signals),
            signals[0].range_advice,
        )
        handle: RemovableHandle = super().register_backward_hook(hook)
        return handle


def _refuse_unsupported(args: Any) -> None:
    """Options of fairseq's Transformer that cannot work with positions, with the reason."""
    if getattr(args, "base_layers", 0):
        raise ValueError(
            f"`--base-layers` must be 0, but is {args.base_layers} instead: a BASE layer is no "
            "Transformer block and takes no positions."
        )
    for name in ("encoder_xformers_att_config", "decoder_xformers_att_config"):
        value = getattr(args, name, None)
        if value and args.position_target == "qkv":
            raise ValueError(
                f"`--{name.replace('_', '-')}` must not be set with `--position-target qkv` (only "
                f"hidden works), but is {value!r} instead: xformers has no place for biases."
            )
    if getattr(args, "ddp_backend", None) == "fully_sharded":
        raise ValueError(
            "`--ddp-backend` must not be fully_sharded: the stack reads every block's initial "
            "positions at once, and sharding hides them. Use pytorch_ddp or legacy_ddp."
        )
