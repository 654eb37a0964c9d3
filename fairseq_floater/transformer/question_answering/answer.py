"""Answer the questions of a split with a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.data import data_utils

from fairseq_floater.transformer.question_answering.head import NAME
from fairseq_floater.transformer.question_answering.spans import (
    Span,
    best_over_windows,
    best_spans,
    text_of,
)


class Answers(NamedTuple):
    """Answers of all questions of a split.

    Attributes:
        texts: the best span's text, by question id, even if no answer is more probable.
        no_answer: the probability that the passage has no answer, by question id; None for SQuAD 1.1.
    """

    texts: dict[str, str]
    no_answer: dict[str, float] | None


def answer_questions(model: Any, task: Any, split: str, max_tokens: int = 8192) -> Answers:
    """Answer the questions of a split, in the order of its file.

    Args:
        model: of ``task``; it is put into evaluation mode.
        task: ``floater_question_answering``.
        split: valid, or another one that the data have.
        max_tokens: of a batch, padding included.

    Raises:
        ValueError: the model gives logits that are not finite.
    """
    data = task.load_dataset(split)
    best = best_over_windows(_window_spans(model.eval(), task, data, max_tokens))
    texts, no_answer = {}, {}
    for number, question in enumerate(data.questions):
        passage, span = question.passage, best[number]
        texts[question.id] = text_of(passage.text, passage.starts, passage.ends, span)
        no_answer[question.id] = torch.tensor(-span.answerable).double().sigmoid().item()
    return Answers(texts, no_answer if task.is_v2 else None)


@torch.no_grad()
def _window_spans(model: Any, task: Any, data: Any, max_tokens: int) -> Iterator[tuple[int, Span]]:
    """Yield, for each window, its question's number and its best span in the passage's tokens."""
    device = next(model.parameters()).device
    order = sorted(range(len(data)), key=data.num_tokens)
    # A single window may have more tokens than a batch should have.
    limit = int(data.sizes.max(initial=max_tokens))
    for batch in data_utils.batch_by_size(order, data.num_tokens, max_tokens=limit):
        sample = data.collater([data[i] for i in batch])
        if device.type == "cuda":
            sample = utils.move_to_cuda(sample, device)
        (logits, answerable), _ = model(**sample["net_input"], features_only=True, **{NAME: True})
        if not (logits.isfinite().all() and answerable.isfinite().all()):
            raise ValueError("The model's logits must be finite, but some are inf or nan instead.")
        longest = task.cfg.answer_tokens
        scores, spans = best_spans(logits[..., 0], logits[..., 1], sample["inside"], longest)
        for score, span, has_answer, window in zip(
            scores.tolist(), spans.tolist(), answerable.tolist(), sample["window"].tolist()
        ):
            question, begin, slot = window
            first, last = (token - slot + begin for token in span)
            yield question, Span(score, first, last, has_answer)
