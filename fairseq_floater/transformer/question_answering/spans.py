"""Find the best answer: cut a passage into windows, score their spans, and combine the windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Span(NamedTuple):
    """The best answer of a window.

    Attributes:
        score: start logit + end logit; -inf if the window has no token.
        first, last: the answer's first and last subword, counted in the passage.
        answerable: logit that the window holds an answer.
    """

    score: float
    first: int
    last: int
    answerable: float


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Cut a passage into overlapping windows that cover every token. Return (begin, tokens) of each.

    Args:
        length: tokens of the passage.
        room: tokens that a window can hold, at least 1.
        stride: tokens between the starts of two windows in a row, at most ``room``.
    """
    step = min(stride, room)
    begins = [(0, min(room, length))]
    while sum(begins[-1]) < length:
        begin = begins[-1][0] + step
        begins.append((begin, min(room, length - begin)))
    return begins


def best_spans(start: Tensor, end: Tensor, inside: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Find the span with the greatest start + end logit in each row; of equals the shortest, then first.

    Args:
        start, end: logits [B, T].
        inside: tokens that an answer may contain, bool [B, T]; they are contiguous in each row.
        longest: tokens of the longest answer.

    Returns:
        Scores [B], float32, -inf in a row without such a token; first and last token [B, 2].
    """
    floor = float("-inf")
    first = start.float().masked_fill(~inside, floor)
    last = end.float().masked_fill(~inside, floor)
    score = first.new_full((len(first),), floor)
    span = torch.zeros(len(first), 2, dtype=torch.long, device=first.device)
    for more in range(min(longest, first.size(1))):
        sums = first[:, : first.size(1) - more] + last[:, more:]
        best, place = sums.max(1)
        better = best > score
        score = torch.where(better, best, score)
        span = torch.where(better[:, None], torch.stack((place, place + more), 1), span)
    return score, span


def best_over_windows(spans: Iterable[tuple[int, Span]]) -> dict[int, Span]:
    """Return the best span of each question over its windows.

    Args:
        spans: number of the question and the best span of a window, for all windows.

    Returns:
        By question, the span with the greatest score (the earliest among equals), with the greatest
        ``answerable`` of all windows: a passage answers a question if one of its windows does.
    """
    best: dict[int, Span] = {}
    for question, span in spans:
        known = best.setdefault(question, span)
        winner = max(known, span, key=lambda s: (s.score, -s.first))
        answerable = max(known.answerable, span.answerable)
        best[question] = winner._replace(answerable=answerable)
    return best


def text_of(passage: str, starts: Sequence[int], ends: Sequence[int], span: Span) -> str:
    """Return the text of a span, without white space around it; empty if no token was scored.

    Args:
        passage: the original text.
        starts, ends: characters ``passage[start:end]`` of each subword.
        span: of :func:`best_spans`, in the passage's subwords.
    """
    if span.score == float("-inf"):
        return ""
    return passage[starts[span.first] : ends[span.last]].strip()
