"""Add the head for questions to a RoBERTa model."""

from __future__ import annotations

from typing import Any

from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

# Not below `classification_heads`: RobertaModel expects `dense` and `out_proj` in all of them.
NAME = "question_answering"


class QuestionHead(nn.Module):
    """Score each token as first and last of the answer; score at ``<s>`` whether the window has one.

    Args:
        args: the model's options.
    """

    def __init__(self, args: Any) -> None:
        super().__init__()
        width = args.encoder_embed_dim
        self.span = nn.Linear(width, 2)
        self.answerable = RobertaClassificationHead(
            width, width, 1, args.pooler_activation_fn, args.pooler_dropout
        )
        self.apply(init_bert_params)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map features [B, T, C] to logits of first and last token [B, T, 2] and of an answer [B]."""
        return self.span(features), self.answerable(features).squeeze(1)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Add tensors that a checkpoint lacks; fairseq calls this before it loads the checkpoint."""
        for key, value in self.state_dict().items():
            state_dict.setdefault(f"{name}.{key}", value)


def add_head(model: RobertaModel) -> None:
    """Give a model the head; ``model(..., features_only=True, question_answering=True)`` returns its logits.

    The head runs in a forward hook, because data-parallel wrappers must see it run within the model's
    forward, which is fairseq's.
    """
    setattr(model, NAME, QuestionHead(model.args))
    model.register_forward_hook(_use_head, with_kwargs=True)


def _use_head(model: nn.Module, args: Any, options: dict[str, Any], output: Any) -> Any:
    if not options.get(NAME):
        return None  # leaves the output as it is
    features, extra = output
    return getattr(model, NAME)(features), extra
