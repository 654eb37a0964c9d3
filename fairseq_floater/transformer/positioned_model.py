"""Hold what every model with positions shares: its options, what it refuses, how it is trained."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from fairseq.models import BaseFairseqModel
from omegaconf import DictConfig, OmegaConf
from torch.utils.hooks import RemovableHandle

from fairseq_floater import position_encoders
from fairseq_floater.position_encoders.attention_kind import describe_attention, ignored_dropout
from fairseq_floater.position_encoders.base import PositionEncoder
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.sides import describe_sides
from fairseq_floater.position_encoders.warp_law import describe_warp
from fairseq_floater.transformer.training_scope import restrict_training

logger = logging.getLogger(__name__)

# What becomes of `--floater-lr-scale` s where a step depends on the size of gradients or parameters.
_LR_SCALE_BECOMES = {
    "sgd": "s squared",
    "nag": "s squared",
    "adadelta": "another multiple",
    "lamb": "no multiple at all",
    "adafactor --scale-parameter": "no multiple at all",
}


def completed(args: Any) -> argparse.Namespace:
    """Complete, check and log the options of positions in ``args``, a Namespace or Hydra's DictConfig.

    Raises:
        ValueError: an unknown or inconsistent option, or one that positions cannot go with.
    """
    if isinstance(args, DictConfig):
        args = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
    encoder = position_encoders.complete(args)
    _refuse_unsupported(args)
    options = position_encoders.encoder_options(args)
    details = encoder.describe(options, args.position_target)
    logger.info(
        "position encoder: %s, blocks: %s, target: %s%s%s%s%s%s",
        args.position_encoder,
        args.position_blocks,
        args.position_target,
        describe_sides(args),
        "" if args.position_combine == ADD else f", combined by {args.position_combine}",
        f" ({details})" if details else "",
        describe_attention(args),
        describe_warp(args),
    )
    for warning in (
        position_encoders.foreign_options(args),
        ignored_dropout(args),
        encoder.warning(options, args.position_target),
    ):
        if warning:
            logger.warning(warning)
    return args


class PositionedModel(BaseFairseqModel):
    """Add to a model of fairseq's the options of positions and what they ask of training."""

    #: Why the model must not be trained with the optimiser of its arguments, or None.
    not_to_train: str | None = None

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        position_encoders.add_args(parser)

    def apply_training_options(self, args: argparse.Namespace) -> None:
        """Take from ``args``, complete, what is to be trained and what must not be."""
        restrict_training(self, args)
        self.not_to_train = _lr_scale_fault(args)

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
    noise = getattr(args, "quant_noise_scalar", 0)
    if noise and not position_encoders.POSITION_ENCODERS[args.position_encoder].takes_scalar_noise:
        raise ValueError(
            f"`--quant-noise-scalar` must be 0 with --position-encoder {args.position_encoder}, but is "
            f"{noise} instead: fairseq finds modules by the names of their weights, and these have "
            "others. Use --quant-noise-pq."
        )
    if getattr(args, "ddp_backend", None) == "fully_sharded":
        raise ValueError(
            "`--ddp-backend` must not be fully_sharded: the stack reads every block's initial "
            "positions at once, and sharding hides them. Use pytorch_ddp or legacy_ddp."
        )
