"""The families of models that checkpoints hold: translation models, RoBERTas and language models."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import (
    DEFAULT_MAX_SOURCE_POSITIONS,
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerModelBase,
)
from fairseq.models.transformer_lm import TransformerLanguageModel
from torch import Tensor

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.position_encoders.rules import STACKS as STACKS
from fairseq_floater.transformer.bert import FAIRSEQ_EPS
from fairseq_floater.transformer.language_model import FloaterLanguageModel
from fairseq_floater.transformer.roberta import FloaterRobertaModel
from fairseq_floater.transformer.shapes import ARCHITECTURES, ROBERTA_ARCHITECTURES
from fairseq_floater.transformer.translation import FloaterTransformerModel
from fairseq_floater.verbs import as_options, dashed

TOKENS = "encoder.sentence_encoder.embed_tokens.weight"  # of a RoBERTa
DEFAULT_POSITIONS = 512  # fairseq's default for RoBERTa
ROBERTA_TABLE = "encoder.sentence_encoder.embed_positions.weight"  # of learned positions
_SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before")


class Family(NamedTuple):
    """A kind of model.

    Attributes:
        name: the family's name in messages.
        base: fairseq's class, from which every model of the family derives.
        model: the class of this package.
        embeddings: the tensors with a row for each entry of a dictionary, the source's first.
        stacks: returns the stacks of a model of this package, by module name.
        architectures: this package's that a warm start can make -> fairseq's of the same shape.
        generic: the architecture that takes any donor's shape; None if no architecture does.
        shape_options: options that fix a model's tensors or what it computes from them, by ``dest``.
        further_options: others that a donor may change -> fairseq's default.
    """

    name: str
    base: type
    model: Any
    embeddings: tuple[str, ...]
    stacks: Callable[[Any], dict[str, Any]]
    architectures: Mapping[str, str] = {}
    generic: str | None = None
    shape_options: tuple[str, ...] = ()
    further_options: Mapping[str, Any] = {}

    def has_positions(self, arch: str | None) -> bool:
        """Return whether ``arch`` is of this package's model, also under a name of your own."""
        return issubclass(ARCH_MODEL_REGISTRY.get(arch, object), self.model)


TRANSLATION = Family(
    name="Transformer",
    base=TransformerModelBase,
    model=FloaterTransformerModel,
    embeddings=tuple(f"{side}.embed_tokens.weight" for side in STACKS),
    stacks=lambda model: {"encoder": model.encoder, "decoder": model.decoder},
    architectures=ARCHITECTURES,
    shape_options=(
        "output_bias",  # of `floater_marian` alone
        *(f"{side}_{name}" for side in STACKS for name in _SIZES),
        "share_all_embeddings",
        "share_decoder_input_output_embed",
        "layernorm_embedding",
        "activation_fn",
        "adaptive_softmax_cutoff",
        "adaptive_softmax_factor",
        "no_scale_embedding",
        "no_cross_attention",
        "cross_self_attention",
    ),
    further_options={
        "encoder_learned_pos": False,
        "decoder_learned_pos": False,
        "max_source_positions": DEFAULT_MAX_SOURCE_POSITIONS,
        "max_target_positions": DEFAULT_MAX_TARGET_POSITIONS,
    },
)
ROBERTA = Family(
    name="RoBERTa",
    base=RobertaModel,
    model=FloaterRobertaModel,
    embeddings=(TOKENS,),
    stacks=lambda model: {"encoder.sentence_encoder": model.encoder.sentence_encoder},
    architectures=ROBERTA_ARCHITECTURES,
    generic="floater_roberta",
    shape_options=(
        *(f"encoder_{name}" for name in _SIZES),
        "layernorm_embedding",
        "activation_fn",
        "pooler_activation_fn",
        "no_scale_embedding",
        "untie_weights_roberta",
    ),
    further_options={"max_positions": DEFAULT_POSITIONS, "layer_norm_eps": FAIRSEQ_EPS},
)
LANGUAGE_MODEL = Family(
    name="language model",
    base=TransformerLanguageModel,
    model=FloaterLanguageModel,
    embeddings=("decoder.embed_tokens.weight",),
    stacks=lambda model: {"decoder": model.decoder},
)
FAMILIES = (TRANSLATION, ROBERTA, LANGUAGE_MODEL)


def train_options(
    args: argparse.Namespace, family: Family, model_options: Sequence[str]
) -> list[str]:
    """Return the options that make fairseq-train build the model of ``args``."""
    usual = argparse.Namespace(**family.further_options)
    ARCH_CONFIG_REGISTRY[args.arch](usual)
    names = (*family.shape_options, *family.further_options)
    values = {name: getattr(args, name, None) for name in names}
    unusual = {n: value for n, value in values.items() if value != getattr(usual, n, None)}
    given = {word.partition("=")[0].removeprefix("--") for word in model_options}
    further = {name: value for name, value in dashed(unusual).items() if name not in given}
    return ["--arch", args.arch, *as_options(further), *model_options]


def architecture(args: argparse.Namespace) -> str | None:
    """Return the name of the architecture that a checkpoint was trained as."""
    return getattr(args, "arch", None) or getattr(args, "_name", None)


def family_of(arch: str | None) -> Family | None:
    """Return the family of a registered architecture; None for other models."""
    model = ARCH_MODEL_REGISTRY.get(arch, object)
    return next((family for family in FAMILIES if issubclass(model, family.base)), None)


def not_of_family(path: object, name: str, arch: str | None) -> CheckpointError:
    """Return the error of the checkpoint ``path``, whose architecture is not of the family ``name``."""
    fault = f"its architecture is {arch!r}"
    if arch not in ARCH_MODEL_REGISTRY:
        fault += " (unknown here; FLOATER_USER_DIR may name the user-dir that registers it)"
    return CheckpointError(f"{path} is not a {name}: {fault}.")


def split_heads(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return a RoBERTa's tensors under today's names, and the names of its classification heads' tensors.

    In 2019 fairseq called RoBERTa's encoder ``decoder``.
    """
    tensors, heads = {}, []
    for name, tensor in state.items():
        today = re.sub(r"^decoder\.", "encoder.", name)
        if today.startswith("encoder."):
            tensors[today.replace(".emb_layer_norm.", ".layernorm_embedding.")] = tensor
        else:
            heads.append(name)
    return tensors, heads
