"""Reading what one system made of a short-to-long test set, and refusing what does not fit it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_floater.hypotheses import (
    BPE_MARKS,
    FilePath,
    join_pieces,
    read_first_tagged,
    read_hypotheses,
    read_references,
    wrong,
)
from fairseq_floater.s2l.bins import S2LError
from fairseq_floater.s2l.held_out import Origin, read_origins
from fairseq_floater.s2l.statistics import Array


@dataclass(frozen=True)
class SystemFiles:
    """The files of a system, one a seed; ``losses`` from fairseq-generate --score-reference."""

    name: str
    hypotheses: list[FilePath] = field(default_factory=list)
    losses: list[FilePath] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationSet:
    """A test set of a split: raw sources and references, and the origin of each pair."""

    sources: list[str]
    references: list[str]
    origins: list[Origin]

    @classmethod
    def read(cls, folder: Path, name: str, langs: Sequence[str], encoded: bool) -> EvaluationSet:
        """Raises S2LError where the files do not have one line for each row of ``name``.tsv."""
        origins = read_origins(folder / f"{name}.tsv")
        sides = []
        for lang in langs:
            path = folder / f"{name}.{lang}"
            lines = read_references(path)
            if len(lines) != len(origins):
                raise S2LError(
                    f"{path} has {len(lines)} lines, but {name}.tsv beside it has {len(origins)} "
                    "rows."
                )
            sides.append(join_pieces(lines, "sentencepiece") if encoded else lines)
        return cls(sides[0], sides[1], origins)


@dataclass(frozen=True)
class SystemRun:
    """One seed of a system on a test set of N sentences.

    Attributes:
        hypotheses: N detokenised lines.
        lengths: [N] tokens of the hypotheses, end symbol included, or None for plain lines.
        losses: [N, 2] bits and tokens of the references (end symbol included), or None.
    """

    hypotheses: list[str]
    lengths: Array | None
    losses: Array | None


def read_runs(files: SystemFiles, test: EvaluationSet) -> list[SystemRun]:
    """Every seed of a system.

    Raises:
        S2LError: another number of loss files than of hypotheses.
        ScoringError: ids missing or double, another number of lines, another text or tokenisation.
    """
    if files.losses and len(files.losses) != len(files.hypotheses):
        raise S2LError(
            f"{files.name} has {len(files.hypotheses)} files of hypotheses, but "
            f"{len(files.losses)} of losses; give one of each for a seed."
        )
    losses: Sequence[FilePath | None] = files.losses or [None] * len(files.hypotheses)
    return [_read_run(path, loss, test) for path, loss in zip(files.hypotheses, losses)]


def _read_run(path: FilePath, loss_path: FilePath | None, test: EvaluationSet) -> SystemRun:
    hypotheses = read_hypotheses(path)
    size = len(test.references)
    if len(hypotheses) != size:
        raise wrong(f"`{path}` must have {size} sentences, as the split", f"has {len(hypotheses)}")
    _check_sources(path, test)
    scored = read_first_tagged(path, "P")
    lengths = None
    if len(scored) == size:
        lengths = np.array([len(scored[i][1].split()) for i in range(size)])
    return SystemRun(
        hypotheses, lengths, None if loss_path is None else _read_losses(loss_path, test)
    )


def _read_losses(path: FilePath, test: EvaluationSet) -> Array:
    """[N, 2]: bits and tokens of each reference, from the P lines (log2 probabilities)."""
    # Of the reference itself: what comes twice, or is another text, is not its loss.
    repeated = read_hypotheses(path)
    scored, size = read_first_tagged(path, "P"), len(test.references)
    missing = [str(i) for i in range(size) if i not in scored]
    if missing or len(scored) > size:
        found = f"has {len(scored)}"
        found += f" (none for {', '.join(missing[:5])})" if missing else ""
        raise wrong(f"`{path}` must have a P line for each of {size} sentences", found)
    _check_sources(path, test)
    strange = [i for i in range(size) if _plain(repeated[i]) != _plain(test.references[i])]
    # Unknown words and normalisation change some lines, a translation nearly all.
    if len(strange) > size / 2:
        rule = f"`{path}` must be of fairseq-generate --score-reference"
        raise wrong(rule, f"sentence {strange[0]} is not the reference")
    rows = []
    for i in range(size):
        number, text = scored[i]
        try:
            values = [float(word) for word in text.split()]
        except ValueError:
            rule = f"`{path}` must have numbers on P lines"
            raise wrong(rule, f"line {number} has {text[:40]!r}") from None
        if not values or not all(map(math.isfinite, values)):
            rule = f"`{path}` must have finite numbers on P lines"
            raise wrong(rule, f"line {number} has {text[:40]!r}")
        rows.append([-sum(values), len(values)])
    return np.array(rows, dtype=np.float64)


def check_same_tokens(runs: dict[str, list[SystemRun]]) -> None:
    """Losses a token compare only where every model counts the same tokens.

    Raises:
        S2LError: a sentence has another number of them in two runs (or a file broke off).
    """
    first: tuple[str, Array] | None = None
    for name, seeds in runs.items():
        for losses in (run.losses for run in seeds if run.losses is not None):
            tokens = losses[:, 1]
            if first is None:
                first = (name, tokens)
            elif (differs := np.flatnonzero(tokens != first[1])).size:
                i = int(differs[0])
                raise S2LError(
                    f"The losses of {name} count {int(tokens[i])} tokens in sentence {i}, those of "
                    f"{first[0]} {int(first[1][i])}: only models of one subword model compare."
                )


def _check_sources(path: FilePath, test: EvaluationSet) -> None:
    """Refuse hypotheses of another text, or of the same text in other tokens (S lines tell)."""
    strange = []
    found = read_first_tagged(path, "S")
    for i, (number, text) in found.items():
        if i >= len(test.sources):
            continue  # told by the count of sentences
        if BPE_MARKS["sentencepiece"].search(text):
            tokens, expected = len(text.split()), test.origins[i].source_tokens
            if tokens != expected:
                rule = f"`{path}` must be in the split's tokens, {expected} in sentence {i}"
                raise wrong(rule, f"line {number} has {tokens}")
        elif "<unk>" not in text and _plain(text) != _plain(test.sources[i]):
            strange.append(number)
    # Normalisation may change a line here and there; another test set differs nearly everywhere.
    if len(strange) > len(found) / 2:
        rule = f"`{path}` must translate the split's test sentences"
        raise wrong(rule, f"line {strange[0]} has another source")


def _plain(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())
