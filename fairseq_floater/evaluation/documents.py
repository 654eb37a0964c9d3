"""Split documents into sentences, to score these one by one and by position in the document."""

from __future__ import annotations

from collections.abc import Sequence


def sentences_of(
    hypotheses: Sequence[str], references: Sequence[str], separator: str
) -> tuple[list[str], list[str], list[int]]:
    """Return the sentences of both sides, and the position of each in its document, from 0.

    If a hypothesis has too few sentences, empty ones are appended. If too many, the surplus joins the last.
    If there are not as many hypotheses as documents, they are sentences already and stay whole.
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
