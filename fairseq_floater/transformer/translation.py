"""Register the translation model: fairseq's Transformer in its named shapes, with any position encoder."""

from __future__ import annotations

from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY, register_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from torch import Tensor, nn

from fairseq_floater.position_encoders.rules import STACKS
from fairseq_floater.transformer.decoder import PositionedDecoder
from fairseq_floater.transformer.encoder import PositionedEncoder
from fairseq_floater.transformer.positioned_model import PositionedModel, completed, register_shape
from fairseq_floater.transformer.shapes import ARCHITECTURES as ARCHITECTURES
from fairseq_floater.transformer.shapes import MARIAN
from fairseq_floater.transformer.stack_positions import with_base

MODEL = "floater_transformer"


@register_model(MODEL)
class FloaterTransformerModel(PositionedModel, TransformerModel):
    """Extend fairseq's Transformer by a choice of position encoders (``--position-encoder``)."""

    @classmethod
    def build_model(cls, args: Any, task: Any) -> FloaterTransformerModel:
        """Build the model for ``args``, a Namespace or Hydra's DictConfig; :func:`completed` checks them."""
        args = completed(args, STACKS, cls)
        model: FloaterTransformerModel = super().build_model(args, task)
        source, target = model.encoder.positions, model.decoder.positions
        one_dictionary = model.encoder.embed_tokens is model.decoder.embed_tokens
        if one_dictionary and type(source) is type(target):
            target.share_words(source)
        model.apply_training_options(args)
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Any,
        prev_output_tokens: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run like fairseq's; a shift that both sides share leaves room for the longer side."""
        longer = self.encoder.longer_side(src_tokens, prev_output_tokens)
        src_lengths = src_lengths if longer is None else longer
        return super().forward(src_tokens, src_lengths, prev_output_tokens, *args, **kwargs)

    @classmethod
    def build_encoder(
        cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding
    ) -> PositionedEncoder:
        cfg = with_base(TransformerConfig.from_namespace(args), "source")
        return PositionedEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding
    ) -> PositionedDecoder:
        cfg = with_base(TransformerConfig.from_namespace(args), "target")
        return PositionedDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )


def marian(args: Any) -> None:
    """Set the options in which Marian's models differ from `transformer`.

    The output has a bias. The decoder starts with <pad>, whose embedding it reads instead of </s>'s.
    Marian's sinusoid is not fairseq's, so fairseq's learned tables hold its rows.
    """
    args.output_bias = args.starts_with_padding = True
    args.encoder_learned_pos = args.decoder_learned_pos = True
    args.activation_fn = getattr(args, "activation_fn", "swish")
    ARCH_CONFIG_REGISTRY["transformer"](args)


for _name, _fairseq_name in ARCHITECTURES.items():
    _shape = marian if _name == MARIAN else ARCH_CONFIG_REGISTRY[_fairseq_name]
    register_shape(MODEL, _name, _shape)
