"""The named shapes: each is fairseq's own architecture of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.transformer import transformer_legacy as fairseq_shapes

from fairseq_floater import position_encoders
from fairseq_floater.transformer import translation as _transformer  # noqa: F401  registers the model
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


def _register(name: str, shape: Callable[[Any], None]) -> None:
    @register_model_architecture(MODEL, name)
    def architecture(args: Any) -> None:
        shape(args)
        position_encoders.complete(args)


for _name, _fairseq_name in ARCHITECTURES.items():
    _register(_name, _SHAPES[_fairseq_name])
