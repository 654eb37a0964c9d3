"""Tell the two families of models apart, translation and RoBERTa: what a donor of each may hold."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from fairseq_floater.transformer.roberta import FloaterRobertaModel
from fairseq_floater.transformer.shapes import ARCHITECTURES, ROBERTA_ARCHITECTURES
from fairseq_floater.transformer.translation import FloaterTransformerModel

SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before")


class Family(NamedTuple):
    """Describe the models of one family.

    Attributes:
        name: what a donor must be, in messages.
        theirs: the class of fairseq that all donors are.
        ours: the class with positions.
        architectures: ours -> fairseq's of the same shape.
        generic: that of ours which takes any donor's shape; None where each takes only its own.
        shape_options: options that fix a model's tensors or what it computes from them, by ``dest``.
        stacks: the stacks of a model of ours, by their place in it.
    """

    name: str
    theirs: type
    ours: Any
    architectures: Mapping[str, str]
    generic: str | None
    shape_options: tuple[str, ...]
    stacks: Callable[[Any], dict[str, Any]]


TRANSLATION = Family(
    "Transformer",
    TransformerModelBase,
    FloaterTransformerModel,
    ARCHITECTURES,
    None,
    (
        *(f"{side}_{name}" for side in ("encoder", "decoder") for name in SIZES),
        "share_all_embeddings",
        "share_decoder_input_output_embed",
        "layernorm_embedding",
        "activation_fn",
        "adaptive_softmax_cutoff",
        "no_scale_embedding",
        "no_cross_attention",
        "cross_self_attention",
    ),
    lambda model: {"encoder": model.encoder, "decoder": model.decoder},
)
ROBERTA = Family(
    "RoBERTa",
    RobertaModel,
    FloaterRobertaModel,
    ROBERTA_ARCHITECTURES,
    "floater_roberta",
    (
        *(f"encoder_{name}" for name in SIZES),
        "layernorm_embedding",
        "activation_fn",
        "pooler_activation_fn",
        "no_scale_embedding",
        "untie_weights_roberta",
    ),
    lambda model: {"encoder.sentence_encoder": model.encoder.sentence_encoder},
)
FAMILIES = (TRANSLATION, ROBERTA)
# How a RoBERTa's embeddings are called: its encoder was a decoder in 2019.
_WORDS = re.compile(r"^(encoder|decoder)\.sentence_encoder\.embed_tokens\.weight$")


def architecture(args: argparse.Namespace) -> str | None:
    """Return the name of the architecture that a checkpoint was trained as."""
    return getattr(args, "arch", None) or getattr(args, "_name", None)


def family_of(arch: str | None) -> Family | None:
    """Return the family of a registered architecture, ours or fairseq's; None for other models."""
    model = ARCH_MODEL_REGISTRY.get(arch, object)
    return next((family for family in FAMILIES if issubclass(model, family.theirs)), None)


def without_heads(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Part a RoBERTa's tensors from those of the heads that tasks registered: both, the latter by name."""
    heads = [name for name in state if name.partition(".")[0] not in ("encoder", "decoder")]
    return {name: tensor for name, tensor in state.items() if name not in heads}, heads


def todays_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename a RoBERTa's tensors of 2019 as fairseq does: its encoder was a decoder."""
    renamed = {}
    for name, tensor in state.items():
        today = re.sub(r"^decoder\.", "encoder.", name)
        renamed[today.replace(".emb_layer_norm.", ".layernorm_embedding.")] = tensor
    return renamed


def vocabulary_of(state: dict[str, Tensor]) -> int | None:
    """Return how many words a RoBERTa's embeddings have, of any age; None where there are none."""
    return next((len(tensor) for name, tensor in state.items() if _WORDS.match(name)), None)
