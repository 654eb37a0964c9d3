"""Register `floater_bert`: fairseq's RoBERTa with the epsilon of another model's LayerNorm.

fairseq's LayerNorm adds 1e-5 to the variance and takes no other number. BERT's adds 1e-12, and its
embeddings have a variance of some 1e-3: with 1e-5 the outputs of a trained BERT of 6 blocks move by 2e-3.
"""

from __future__ import annotations

import argparse
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.modules import LayerNorm
from torch import nn

#: fairseq's, which RoBERTa was trained with
FAIRSEQ_EPS = 1e-5
BERT_EPS = 1e-12


@register_model("floater_bert")
class FloaterBertModel(RobertaModel):
    """fairseq's RoBERTa with ``--layer-norm-eps``; its tensors have the same names."""

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        RobertaModel.add_args(parser)
        add_layer_norm_eps(parser, BERT_EPS)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> FloaterBertModel:
        model: FloaterBertModel = super().build_model(args, task)
        set_layer_norm_eps(model, getattr(args, "layer_norm_eps", None) or BERT_EPS)
        return model


def add_layer_norm_eps(parser: argparse.ArgumentParser, default: float) -> None:
    """Add the option; ``default`` appears only in its help, and the parser does not set it."""
    text = f"what LayerNorm adds to the variance (default: {default}; BERT: {BERT_EPS})"
    parser.add_argument("--layer-norm-eps", type=float, metavar="X", help=text)


def set_layer_norm_eps(model: nn.Module, eps: float) -> None:
    """Set what every LayerNorm of ``model`` adds to the variance."""
    kinds = (nn.LayerNorm, type(LayerNorm(1)))  # apex, if it is installed, brings its own
    for module in model.modules():
        if isinstance(module, kinds):
            module.eps = eps


@register_model_architecture("floater_bert", "floater_bert")
def floater_bert(args: Any) -> None:
    """Fill in RoBERTa's base shape, and BERT's epsilon."""
    args.layer_norm_eps = getattr(args, "layer_norm_eps", None) or BERT_EPS
    base_architecture(args)
