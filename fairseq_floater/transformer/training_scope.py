"""Train a part of a model: ``--floater-train``."""

from __future__ import annotations

from argparse import Namespace

from torch import nn

from fairseq_floater.ode import RescaledModule
from fairseq_floater.position_encoders import encoder_options
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.floater_training import trains_transformer


def restrict_training(model: nn.Module, args: Namespace) -> None:
    """Freeze all but h and p(0) where ``args``, complete, ask for the flow alone.

    Which of h and p(0) is trained, both decide by themselves. Modules that come later, such as the
    heads that a task registers, are trained.
    """
    if args.position_encoder != FloaterPositions.name or trains_transformer(encoder_options(args)):
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
