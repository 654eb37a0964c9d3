"""Register the criterion of the task ``floater_question_answering``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_floater.transformer.question_answering.head import NAME
from fairseq_floater.transformer.question_answering.spans import best_spans
from fairseq_floater.transformer.question_answering.task import TASK

_LOSSES = ("loss", "span_loss", "answerable_loss")


@register_criterion(TASK, dataclass=FairseqDataclass)
class QuestionAnsweringCriterion(FairseqCriterion):
    """Sum over windows the mean of the two cross-entropies of the answer's first and last token.

    The candidates are the window's tokens and ``<s>``, which is the target if the window has no answer.
    SQuAD 2.0 adds half the binary cross-entropy of whether the window has an answer.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.is_v2, self.longest = task.is_v2, task.cfg.answer_tokens

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss, the number of windows, and sums for the log."""
        options = {"features_only": True, NAME: True}
        (logits, answerable), _ = model(**sample["net_input"], **options)
        logits, answerable = logits.float(), answerable.float()
        has_answer = sample["answers"][:, 0, 0] >= 0
        spans = span_loss(logits, sample["inside"], sample["target"])
        loss, log = spans, {}
        if self.is_v2:
            answerable_loss = F.binary_cross_entropy_with_logits(
                answerable, has_answer.float(), reduction="sum"
            )
            loss = spans + 0.5 * answerable_loss
            log["answerable_loss"] = answerable_loss.data
        size = sample["nsentences"]
        log |= {"loss": loss.data, "span_loss": spans.data, "ntokens": sample["ntokens"]}
        log |= {"nsentences": size, "sample_size": size}
        if not model.training:
            log |= self._hits(logits, answerable, has_answer, sample)
        return loss, size, log

    def _hits(
        self, logits: Tensor, answerable: Tensor, has_answer: Tensor, sample: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the sums of exact matches and of F1 of the best spans, and the windows counted."""
        _, span = best_spans(logits[..., 0], logits[..., 1], sample["inside"], self.longest)
        exact, f1 = overlap(span, sample["answers"])
        counted = has_answer
        if self.is_v2:
            counted = torch.ones_like(has_answer)
            predicted = answerable > 0
            exact, f1 = (
                torch.where(has_answer, hit * predicted, (~predicted).float())
                for hit in (exact, f1)
            )
        return {
            "exact": (exact * counted).sum(),
            "f1": (f1 * counted).sum(),
            "counted": counted.sum(),
        }

    @staticmethod
    def reduce_metrics(logging_outputs: Iterable[dict[str, Any]]) -> None:
        """Log means per window: losses in bits, ``window_exact`` and ``window_f1`` in per cent.

        These two scores compare tokens of single windows, and serve to choose a checkpoint. SQuAD's own
        scores compare words of whole answers (``floater squad score``).
        """
        outputs = list(logging_outputs)

        def total(name: str) -> Any:
            return sum(output.get(name, 0) for output in outputs)

        size, counted = total("sample_size"), total("counted")
        for name in _LOSSES:
            if any(name in output for output in outputs):
                mean = total(name) / size / math.log(2)
                metrics.log_scalar(name, mean, size, round=3)
        if counted:
            for name in ("exact", "f1"):
                mean = 100 * total(name) / counted
                metrics.log_scalar(f"window_{name}", mean, counted, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def span_loss(logits: Tensor, inside: Tensor, target: Tensor) -> Tensor:
    """Return the sum over windows of the mean cross-entropy of first and last token.

    Args:
        logits: [B, T, 2], float32.
        inside: tokens of the passage, bool [B, T]; ``<s>`` is added to them.
        target: slots of first and last token [B, 2]; 0 without an answer.
    """
    allowed = inside.clone()
    allowed[:, 0] = True
    masked = logits.masked_fill(~allowed.unsqueeze(2), float("-inf"))
    return 0.5 * F.cross_entropy(masked, target, reduction="sum")


def overlap(span: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether a span is one of the answers, and the best F1 of its tokens with one of them.

    Args:
        span: first and last token [B, 2].
        answers: [B, A, 2], padded by -1.
    """
    first, last = answers.unbind(2)
    has_answer = first >= 0
    shared = torch.minimum(last, span[:, 1:]) - torch.maximum(first, span[:, :1]) + 1
    lengths = last - first + 1 + (span[:, 1:] - span[:, :1] + 1)
    f1 = 2.0 * shared.clamp(min=0) / lengths
    exact = (answers == span.unsqueeze(1)).all(2)
    return (exact & has_answer).any(1).float(), (f1 * has_answer).max(1).values
