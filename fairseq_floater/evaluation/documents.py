"""Take documents apart, so that their sentences are scored one by one and by their places."""

from __future__ import annotations

from collections.abc import Sequence


def sentences_of(
    hypotheses: Sequence[str], references: Sequence[str], separator: str
) -> tuple[list[str], list[str], list[int]]:
    """Return the sentences of both sides, and of each its place in its document, from 0.

    A hypothesis of fewer pieces than its reference has empty ones at its end; of one with more the surplus
    joins the last. As many hypotheses as there are sentences, of a system that translates these, stay.
    """
    parts = [[part.strip() for part in line.split(separator)] for line in references]
    places = [place for sentences in parts for place in range(len(sentences))]
    scored = list(hypotheses)
    if len(scored) == len(parts):
        scored = []
        for line, sentences in zip(hypotheses, parts):
            pieces, last = [piece.strip() for piece in line.split(separator)], len(sentences) - 1
            scored += [*pieces[:last], " ".join(pieces[last:])]
            scored += [""] * (last - len(pieces[:last]))
    return scored, [sentence for sentences in parts for sentence in sentences], places
