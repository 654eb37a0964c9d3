"""Sort sentences into bins of source length, in the model's own tokens without the end symbol."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from fairseq_floater.errors import UsageError, UserError

# The bins of the paper (Figure 2).
DEFAULT_THRESHOLD = 80
DEFAULT_EDGES = (80, 100, 120, 140)


class S2LError(UserError):
    """Raised for data or hypotheses that cannot be used; the message is one sentence for a person."""


@dataclass(frozen=True)
class Bins:
    """Half-open ranges [edges[0], edges[1]), ..., [edges[-1], inf) of source length.

    Attributes:
        edges: where the ranges begin, in ascending order; the first edge is the threshold.

    Raises:
        UsageError: an edge is not positive, or not above the one before it.
    """

    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.edges or self.edges[0] < 1:
            raise UsageError(f"`--threshold` must be at least 1, but is {self.threshold} instead.")
        for before, edge in zip(self.edges, self.edges[1:]):
            if edge <= before:
                raise UsageError(
                    f"`--edges` must increase, so that no bins overlap, but {edge} follows {before}."
                )

    @classmethod
    def from_options(cls, threshold: int | None, edges: Sequence[int] | None) -> Bins:
        """Return the bins of ``--threshold`` and ``--edges``; the first edge may be left out.

        Without edges, take the paper's for the paper's threshold, else the same multiples of it.
        """
        if threshold is None:
            threshold = edges[0] if edges else DEFAULT_THRESHOLD
        if edges is None:
            # Count exactly: a float would overflow for a threshold of 300 digits.
            multiples = (round(Fraction(threshold * e, DEFAULT_THRESHOLD)) for e in DEFAULT_EDGES)
            edges = list(dict.fromkeys(multiples))  # some are equal where the threshold is small
        if edges and edges[0] < threshold:
            raise UsageError(
                f"`--edges` must not begin below `--threshold`, {threshold}, "
                f"but {edges[0]} is below it."
            )
        if not edges or edges[0] != threshold:
            edges = [threshold, *edges]
        return cls(tuple(edges))

    @property
    def threshold(self) -> int:
        return self.edges[0] if self.edges else 0

    @property
    def names(self) -> list[str]:
        ends = [*map(str, self.edges[1:]), "inf"]
        return [f"[{start}, {end})" for start, end in zip(self.edges, ends)]

    @property
    def short_name(self) -> str:
        """Return the name of the range of trained lengths."""
        return f"[1, {self.threshold})"

    def index(self, length: int) -> int:
        """Return the bin of a source of ``length`` tokens; -1 for one below the threshold."""
        return bisect_right(self.edges, length) - 1
