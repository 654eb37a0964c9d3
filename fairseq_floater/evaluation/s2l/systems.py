"""Read test sets and the output of systems for them; refuse output of other text."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_floater.data.parallel_text import FilePath
from fairseq_floater.data.pieces import BPE_MARKS, join_pieces
from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.evaluation.documents import sentences_of
from fairseq_floater.evaluation.hypotheses import (
    read_hypotheses,
    read_references,
    read_tagged,
    same_text,
)
from fairseq_floater.evaluation.lines import (
    ScoringError,
    TextFile,
    read_numbers,
    scoring_error,
)
from fairseq_floater.evaluation.metrics import Array
from fairseq_floater.records import RECORD, read_json


@dataclass(frozen=True)
class SystemFiles:
    """The files of a system, one per seed.

    ``losses`` are from fairseq-generate --score-reference; ``scores`` have one number per line.
    """

    name: str
    hypotheses: list[FilePath] = field(default_factory=list)
    losses: list[FilePath] = field(default_factory=list)
    scores: list[FilePath] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationSet:
    """A test set of N pairs.

    Attributes:
        path: of its files, without their endings.
        sources, references: N raw lines each.
        source_tokens: [N] lengths.
        bins: the name of the group of each of the N pairs.
        files: the file that each of the N pairs of a split comes from; empty for a whole test set.
        separator: the word between the sentences of a line, if lines are documents.
    """

    path: Path
    sources: list[str]
    references: list[str]
    source_tokens: Array
    bins: list[str]
    files: list[str] = field(default_factory=list)
    separator: str | None = None

    @classmethod
    def read(cls, folder: Path, name: str, made: Mapping[str, Any]) -> EvaluationSet:
        """Read a test set of the split in ``folder``, made with the options ``made``."""
        langs, encoded = (made["source"], made["target"]), made["encoded"]
        table = folder / f"{name}.tsv"
        reader = csv.DictReader(TextFile(table).lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            rows = list(reader)
            bins, files = ([row[column] for row in rows] for column in ("bin", "file"))
            source_tokens = np.array([int(row["source_tokens"]) for row in rows], dtype=np.int64)
        except (csv.Error, KeyError, TypeError, ValueError, OverflowError):
            raise ScoringError(f"{table} is not a table of `floater s2l split`.") from None
        sides = []
        for lang in langs:
            path = folder / f"{name}.{lang}"
            lines = read_references(path)
            if len(lines) != len(rows):
                raise ScoringError(
                    f"{path} has {len(lines)} lines, but {name}.tsv beside it has {len(rows)} rows."
                )
            sides.append([join_pieces(s, "sentencepiece") for s in lines] if encoded else lines)
        sources, references = sides
        separator = made.get("separator")
        return cls(folder / name, sources, references, source_tokens, bins, files, separator)

    @classmethod
    def read_prepared(cls, data: Path, name: str, made: Mapping[str, Any]) -> EvaluationSet:
        """Read a test set that ``scripts/prepare_text.sh`` made with the options ``made``.

        All its pairs are one group, unless its ``.groups`` file names a group for each.
        """
        langs, subwords = (made["src"], made["tgt"]), SEGMENTATIONS[made["bpe"]].folder
        raw = data / "raw" / name
        sources, references = (read_references(f"{raw}.{lang}") for lang in langs)
        source_tokens, target_tokens = (
            token_counts(data / subwords / f"{name}.{lang}") for lang in langs
        )
        lines = [len(side) for side in (sources, references, source_tokens, target_tokens)]
        if len(set(lines)) > 1:
            raise ScoringError(
                f"{raw} must have as many lines in {langs[0]} as in {langs[1]} and as both in {subwords}, "
                f"but has {', '.join(map(str, lines))}."
            )
        groups = Path(f"{raw}.groups")
        parts = TextFile(groups).lines if groups.is_file() else []
        bins = [f"{name}, {part}" for part in parts] or [name] * len(sources)
        separator = made.get("separator")
        return cls(raw, sources, references, source_tokens, bins, separator=separator)

    def __len__(self) -> int:
        return len(self.bins)

    def sentences(self, hypotheses: Sequence[str]) -> Sequence[str]:
        """Return the M sentences of N hypotheses, which are as many unless lines are documents."""
        if self.separator is None:
            return hypotheses
        return sentences_of(hypotheses, self.references, self.separator)[0]

    @cached_property
    def reference_sentences(self) -> Sequence[str]:
        """The M sentences of the references."""
        return self.sentences(self.references)

    @cached_property
    def places(self) -> Array:
        """The position of each of M sentences in its document, from 0; else every line is a sentence."""
        if self.separator is None:
            return np.zeros(len(self), dtype=np.int64)
        *_, places = sentences_of((), self.references, self.separator)
        return np.array(places)

    def summed(self, of_sentences: Array) -> Array:
        """Sum counts of sentences [M, K] over the documents, if lines are documents: [N, K]."""
        if self.separator is None:
            return of_sentences
        return np.add.reduceat(of_sentences, np.flatnonzero(self.places == 0), axis=0)

    def members(self, name: str) -> Array:
        return np.flatnonzero([bin == name for bin in self.bins])


def token_counts(path: FilePath) -> Array:
    """Return the number of tokens in each line of a text in subwords, [N]."""
    return np.array([len(line.split()) for line in read_references(path)], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SystemRun:
    """One seed of a system on a test set of N sentences.

    Attributes:
        hypotheses: N detokenised lines.
        lengths: [N] tokens of the hypotheses, end symbol included, or None for plain lines.
        losses: [N, 2] bits and tokens of the references (end symbol included), or None.
        scores: [N, 2] another metric's number and 1, or None.
    """

    hypotheses: list[str]
    lengths: Array | None
    losses: Array | None
    scores: Array | None


def known_seeds(files: Sequence[FilePath]) -> list[str] | None:
    """Return the seed of each file of a system: N of its folder seed-N, else the seed in its run.json.

    None if a file has no known seed, or two have the same.
    """
    seeds = [_seed(Path(file).parent) for file in files]
    known = [seed for seed in seeds if seed is not None]
    return known if len(set(known)) == len(files) else None


def _seed(folder: Path) -> str | None:
    numbers = [match[1] for part in folder.parts if (match := re.fullmatch(r"seed-(\d+)", part))]
    if numbers:
        return numbers[-1]
    record = folder / RECORD
    if not record.is_file():
        return None
    return read_json(record, {"settings?": dict}).get("settings", {}).get("seed")


def read_runs(files: SystemFiles, test: EvaluationSet) -> list[SystemRun]:
    seeds, order = len(files.hypotheses), known_seeds(files.hypotheses)
    for kind, paths in (("losses", files.losses), ("scores", files.scores)):
        if paths and len(paths) != seeds:
            raise ScoringError(
                f"{files.name} has {seeds} files of hypotheses, but {len(paths)} of {kind}; give one of "
                "each per seed."
            )
        theirs = known_seeds(paths)
        if order and theirs and theirs != order:
            raise ScoringError(
                f"{files.name} has hypotheses of the seeds {', '.join(order)}, but {kind} of "
                f"{', '.join(theirs)}; name them in one order."
            )
    losses: Sequence[FilePath | None] = files.losses or [None] * seeds
    scores: Sequence[FilePath | None] = files.scores or [None] * seeds
    return [_read_run(*paths, test) for paths in zip(files.hypotheses, losses, scores, strict=True)]


def _read_run(
    path: FilePath, loss_path: FilePath | None, score_path: FilePath | None, test: EvaluationSet
) -> SystemRun:
    file, size = TextFile(path), len(test)
    hypotheses = read_hypotheses(file)
    if len(hypotheses) != size:
        rule = f"`{path}` must have {size} sentences, as the test set"
        raise scoring_error(rule, f"has {len(hypotheses)}")
    _check_sources(file, test)
    lengths = np.full(size, -1, dtype=np.int32)
    for _, _, sentence, text in read_tagged(file, "P"):
        if sentence < size and lengths[sentence] < 0:  # the first of several is the best
            lengths[sentence] = len(text.split())
    losses = None if loss_path is None else _read_losses(loss_path, test)
    scores = None
    if score_path is not None:
        numbers = read_numbers(score_path, len(test.places))
        scores = test.summed(np.array([(number, 1) for number in numbers]))
    return SystemRun(hypotheses, lengths if (lengths >= 0).all() else None, losses, scores)


def _read_losses(path: FilePath, test: EvaluationSet) -> Array:
    """Return bits and tokens of each reference [N, 2], from the P lines (log2 probabilities)."""
    # Read the text too, to refuse the losses of another text, and losses given twice.
    file = TextFile(path)
    repeated = read_hypotheses(file)
    losses: dict[int, tuple[float, int]] = {}
    for number, _, sentence, text in read_tagged(file, "P"):
        try:
            values = [float(word) for word in text.split()]
        except ValueError:
            values = []
        if not values or not math.isfinite(sum(values)):
            rule = f"`{path}` must have finite numbers on P lines"
            raise scoring_error(rule, f"line {number} has {text[:40]!r}")
        losses.setdefault(sentence, (-sum(values), len(values)))
    expected = range(len(test))
    if losses.keys() != set(expected) or len(repeated) != len(test):
        missing = [str(i) for i in expected if i not in losses][:5]
        fault = f"has {len(losses)}" + (f" (none for {', '.join(missing)})" if missing else "")
        rule = f"`{path}` must have a P line for each of {len(test)} sentences"
        raise scoring_error(rule, fault)
    _check_sources(file, test)
    # Unknown words cannot be compared, and normalisation may change a few lines. A translation differs
    # from the reference in nearly every line.
    known = [i for i in expected if "<unk>" not in repeated[i]]
    strange = [i for i in known if not same_text(repeated[i], test.references[i])]
    if len(strange) > len(known) / 2:
        rule = f"`{path}` must come from fairseq-generate --score-reference"
        raise scoring_error(rule, f"sentence {strange[0]} is not the reference")
    return np.array([losses[i] for i in expected], dtype=np.float64)


def check_same_tokens(runs: dict[str, list[SystemRun]]) -> None:
    """Check that all runs count the same tokens, as a comparison of losses per token requires."""
    every = [(name, run.losses) for name, seeds in runs.items() for run in seeds]
    counts = [(name, losses[:, 1]) for name, losses in every if losses is not None]
    for name, tokens in counts[1:]:
        first, expected = counts[0]
        differs = np.flatnonzero(tokens != expected)
        if differs.size:
            i = differs[0]
            raise ScoringError(
                f"The losses of {name} count {tokens[i]:.0f} tokens in sentence {i}, those of "
                f"{first} {expected[i]:.0f}: compare only models with the same subwords."
            )


def _check_sources(file: TextFile, test: EvaluationSet) -> None:
    """Refuse hypotheses whose S lines have another text, or the same text in other tokens."""
    count, strange = 0, []
    for number, _, i, text in read_tagged(file, "S"):
        count += 1
        if BPE_MARKS["sentencepiece"].search(text):
            tokens, expected = len(text.split()), int(test.source_tokens[i])
            if tokens != expected:
                rule = f"`{file.path}` must be in the test set's tokens, {expected} in sentence {i}"
                raise scoring_error(rule, f"line {number} has {tokens}")
        elif "<unk>" not in text and not same_text(text, test.sources[i]):
            strange.append(number)
    # Normalisation may change a line here and there; another test set differs nearly everywhere.
    if len(strange) > count / 2:
        rule = f"`{file.path}` must translate the test set's sentences"
        raise scoring_error(rule, f"line {strange[0]} has another source")
