"""Train a part of a model: ``--floater-train``."""

from __future__ import annotations

from argparse import Namespace

from torch import nn

from fairseq_floater.ode import RescaledModule
from fairseq_floater.position_encoders import encoder_options
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.floater_options import (
    BIAS,
    trains_start,
    trains_transformer,
)
from fairseq_floater.transformer.owners import biases_of, positions_of


def restrict_training(model: nn.Module, args: Namespace) -> None:
    """If ``args`` train only the flow, freeze all but h and p(0); otherwise the biases that p(0) replaces.

    h and p(0) decide by themselves whether they are trained. Modules that are added later, such as the
    heads that a task registers, are trained.
    """
    if args.position_encoder != FloaterPositions.name:
        return
    options = encoder_options(args)
    if trains_transformer(options):
        if options["floater_start"] == BIAS and trains_start(options):
            _freeze_replaced_biases(model)
        return
    flow = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, RescaledModule)
        for parameter in module.parameters()
    }
    for parameter in model.parameters():
        if id(parameter) not in flow:
            parameter.requires_grad_(False)


def _freeze_replaced_biases(model: nn.Module) -> None:
    """Freeze the biases that p(0) replaces, at zero until a checkpoint is loaded.

    With the same gradient, their sum would take a double step.
    """
    stacks = {name: m for name, m in model.named_modules() if hasattr(m, "layers")}
    for positions in positions_of(stacks):
        for _, _, bias in biases_of(positions):
            bias.detach().zero_()
            bias.requires_grad_(False)
