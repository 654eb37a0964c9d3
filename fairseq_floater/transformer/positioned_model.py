"""Define what all models with positions share: their options, checks and training."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    BaseFairseqModel,
    register_model_architecture,
)
from omegaconf import DictConfig, OmegaConf
from torch.utils.hooks import RemovableHandle

from fairseq_floater import position_encoders
from fairseq_floater.position_encoders.base import PositionEncoder
from fairseq_floater.position_encoders.fairseq_rules import training_fault
from fairseq_floater.position_encoders.registry import INPUT_BLOCK
from fairseq_floater.transformer.training_scope import restrict_training

logger = logging.getLogger(__name__)


def completed(
    args: Any, stacks: tuple[str, ...], model: type[BaseFairseqModel] | None = None
) -> argparse.Namespace:
    """Complete, check and log the options of positions in ``args``, a Namespace or Hydra's DictConfig.

    Args:
        args: the model's options.
        stacks: those of the model (`rules.py`).
        model: its class, to warn of options in a DictConfig that it does not have.

    Raises:
        ValueError: an option is unknown, inconsistent, or does not work with positions.
    """
    if isinstance(args, DictConfig):
        args = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
        if model is not None:
            _warn_of_unknown(args, model)
    position_encoders.complete(args, stacks)
    logger.info("position encoder: %s", position_encoders.signature(args))
    for warning in position_encoders.warnings(args):
        logger.warning(warning)
    return args


def _warn_of_unknown(args: argparse.Namespace, model: type[BaseFairseqModel]) -> None:
    """Warn of options that only Hydra lets through; they may come from an old checkpoint, too."""
    parser, of_architecture = argparse.ArgumentParser(), argparse.Namespace()
    model.add_args(parser)
    if (arch := getattr(args, "_name", None)) in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[arch](of_architecture)
    known = {"_name", "arch", *vars(of_architecture), *(a.dest for a in parser._actions)}
    for name in sorted(vars(args).keys() - known):
        similar = get_close_matches(name, known, 1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        logger.warning("%s is not an option of the model and has no effect%s", name, hint)


class PositionedModel(BaseFairseqModel):
    """Add the options of positions to a fairseq model, and what they require of training."""

    #: Why the model must not be trained with the optimiser of its arguments, or None.
    not_to_train: str | None = None
    #: The options of positions that the loaded checkpoint had and the model has not; empty if none.
    trained_otherwise = ""

    @classmethod
    def hub_models(cls) -> dict[str, Any]:
        """Return no pretrained models: fairseq's have other positions."""
        return {}

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        position_encoders.add_args(parser)

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare for decoding, with the weights that ``--decoding-weights`` names."""
        super().make_generation_fast_(weights=self.args.decoding_weights, **kwargs)

    def apply_training_options(self, args: argparse.Namespace) -> None:
        """Freeze what ``args``, complete, exclude from training, and note if training must be refused."""
        restrict_training(self, args)
        self.not_to_train = training_fault(args)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            options = position_encoders.trained_options(vars(self.args))
            destination._metadata[prefix[:-1]]["positions"] = options

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *others)
        self.trained_otherwise = ""
        trained = metadata.get("positions") or _options_of_plain(state, self.args)
        if trained is not None:
            changes = position_encoders.changed_options(vars(self.args), trained)
            texts = (f"{name} was {before} and is {now}" for name, now, before in changes)
            self.trained_otherwise = ", ".join(texts)
        if self.trained_otherwise:
            logger.warning("the checkpoint had other positions: %s", self.trained_otherwise)

    def set_num_updates(self, num_updates: int) -> None:
        """Pass the number of updates on; fairseq's tasks call this before every update.

        Raises:
            ValueError: the optimiser does not go with ``--floater-lr-scale``, or a training resumes from
                a checkpoint with other positions. A new training may begin from such a checkpoint.
        """
        # A model is not refused when it is built, because it may be built for evaluation only.
        if self.not_to_train:
            raise ValueError(self.not_to_train)
        if self.trained_otherwise and num_updates:
            raise ValueError(
                f"A training must resume with the same positions, but {self.trained_otherwise}. To "
                "begin a new training from the checkpoint, pass another --save-dir and "
                "--finetune-from-model."
            )
        self.trained_otherwise = ""
        super().set_num_updates(num_updates)

    def register_backward_hook(self, hook: Any) -> RemovableHandle:
        """Log how large positions are; fairseq's NanDetector calls this if gradients are not finite."""
        encoders = [module for module in self.modules() if isinstance(module, PositionEncoder)]
        logger.error(
            "Gradients are not finite. The tables of positions of the last batch had the norms %s "
            "(all rows together; float16: the largest entry). If these are large: %s",
            ", ".join(
                f"{e.size:.3g} ({'/'.join(e.spec.streams)}, {e.spec.side})" for e in encoders
            ),
            encoders[0].range_advice,
        )
        return super().register_backward_hook(hook)


def _options_of_plain(state: Any, args: argparse.Namespace) -> dict[str, Any] | None:
    """Return ``args`` with the positions of fairseq's own models if a state dict is of one, else None."""
    modules = getattr(state, "_metadata", {})  # fairseq's averages have none
    if not modules or any(name.endswith(".positions") for name in modules):
        return None
    if args.position_encoder == "none" and position_encoders.has_base(args):
        return vars(args)
    plain = {"position_encoder": "sinusoidal", "position_target": "hidden"}
    return {**vars(args), **plain, "position_blocks": INPUT_BLOCK}


def register_shape(model: str, name: str, shape: Callable[[Any], None]) -> None:
    """Register the architecture ``name`` of ``model``: ``shape`` with the options of positions."""

    @register_model_architecture(model, name)
    def architecture(args: Any) -> None:
        shape(args)
        position_encoders.complete(args)
