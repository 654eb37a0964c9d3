"""The options of a short-to-long split: bins of source length, and others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_floater.data.parallel_text import check_languages
from fairseq_floater.data.sentencepiece_subwords import LEARNED_ONLY
from fairseq_floater.errors import UsageError

# The bins of the paper (Figure 2).
DEFAULT_EDGES = (80, 100, 120, 140)


@dataclass(frozen=True)
class Bins:
    """Half-open ranges [edges[0], edges[1]), ..., [edges[-1], inf) of source length.

    Lengths are in the model's own tokens, without the end symbol.

    Attributes:
        edges: where the ranges begin, in ascending order; the first edge is the threshold.
    """

    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        for before, edge in zip(self.edges, self.edges[1:]):
            if edge <= before:
                raise UsageError(
                    f"`--edges` must increase, so that no bins overlap, but {edge} follows {before}."
                )

    @classmethod
    def from_options(cls, threshold: int | None, edges: Sequence[int] | None) -> Bins:
        """Return the bins of ``--threshold`` and ``--edges``; the first edge may be left out.

        Without edges, they are the paper's, scaled to the threshold.
        """
        if threshold is None:
            threshold = edges[0] if edges else DEFAULT_EDGES[0]
        if not edges:
            multiples = (round(threshold * edge / DEFAULT_EDGES[0]) for edge in DEFAULT_EDGES)
            edges = list(dict.fromkeys(multiples))  # some are equal if the threshold is small
        if edges[0] < threshold:
            raise UsageError(
                f"`--edges` must not begin below `--threshold`, {threshold}, "
                f"but {edges[0]} is below it."
            )
        return cls((threshold, *edges) if edges[0] > threshold else tuple(edges))

    @property
    def threshold(self) -> int:
        return self.edges[0]

    @property
    def names(self) -> list[str]:
        """Return the names of the ranges, such as [80, 100)."""
        ends = [*map(str, self.edges[1:]), "inf"]
        return [f"[{start}, {end})" for start, end in zip(self.edges, ends)]

    @property
    def short_name(self) -> str:
        return f"[1, {self.threshold})"

    def index(self, length: int) -> int:
        """Return the bin of a source of ``length`` tokens; -1 for one below the threshold."""
        return bisect_right(self.edges, length) - 1


@dataclass(frozen=True)
class SplitOptions:
    """The options that decide a split.

    Attributes:
        edges: of :class:`Bins`; the first is the threshold.
        both_sides: train and valid pairs also need a target below the threshold.
        vocab: number of subwords to learn. Exactly one of this and the next three is given.
        spm_model: a sentencepiece model to count with.
        encoded: the text is in subwords already, separated by spaces.
        subwords: ``none``: lengths are counted in words.
        separator: a word that stays one subword if a model is learned.
        normalization: of the model that is learned; None: sentencepiece's default.
        max_len: pairs with more tokens on a side are left out.
        max_per_bin: the most test pairs in a bin, a random sample drawn with ``seed``; None: all pairs.
    """

    source: str
    target: str
    edges: tuple[int, ...]
    both_sides: bool = False
    vocab: int | None = None
    spm_model: Path | None = None
    encoded: bool = False
    subwords: str | None = None
    max_len: int = 1_000
    max_per_bin: int | None = None
    seed: int = 1
    character_coverage: float = 1.0
    separator: str | None = None
    normalization: str | None = None

    def __post_init__(self) -> None:
        check_languages(self.source, self.target)
        if self.normalization and self.vocab is None:
            raise UsageError(LEARNED_ONLY)
        given = [self.vocab is not None, self.spm_model is not None, self.encoded, self.subwords]
        if sum(map(bool, given)) != 1:
            raise UsageError(
                "Lengths are counted in the model's own tokens: give exactly one of `--vocab` (learn "
                "a subword model), `--spm-model` (use one), `--encoded` (the text is in subwords) and "
                "`--subwords none` (its words are the tokens)."
            )
