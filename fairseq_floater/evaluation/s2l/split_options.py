"""Hold the options of a short-to-long split, and check the form of its inputs."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from fairseq_floater.data.parallel_text import read_lines
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.hypotheses import BPE_MARKS
from fairseq_floater.evaluation.s2l.bins import S2LError

# How many lines of each file to look at to tell raw text from subwords.
_HEAD_LINES = 1_000


@dataclass(frozen=True)
class SplitOptions:
    """The options that decide a split.

    Attributes:
        source, target: languages, as in the file names.
        edges: of :class:`Bins`; the first is the threshold.
        both_sides: train and valid pairs also need a target below the threshold.
        vocab: subwords of a model to learn; else ``spm_model`` or ``encoded``.
        spm_model: a sentencepiece model to count with.
        encoded: the text is in subwords already, separated by spaces.
        max_len: pairs with more tokens on a side are left out.
        max_per_bin: an even sample of so many test pairs a bin, None for all.
        seed: of the sample.
        character_coverage: of the model to learn.
    """

    source: str
    target: str
    edges: tuple[int, ...]
    both_sides: bool = False
    vocab: int | None = None
    spm_model: Path | None = None
    encoded: bool = False
    max_len: int = 1_000
    max_per_bin: int | None = None
    seed: int = 1
    character_coverage: float = 1.0

    def __post_init__(self) -> None:
        for language in (self.source, self.target):
            # fairseq reads the languages back from file names, where `.` and `-` separate.
            if not re.fullmatch(r"\w+", language, re.ASCII):
                raise UsageError(f"A language is letters, digits and _, but is {language!r}.")
        if self.source == self.target:
            raise UsageError(f"`--src` and `--tgt` must differ, but both are {self.source!r}.")
        given = [self.vocab is not None, self.spm_model is not None, self.encoded]
        if sum(given) != 1:
            raise UsageError(
                "Lengths are counted in the model's own tokens: give exactly one of `--vocab` (learn "
                "a subword model), `--spm-model` (use one) and `--encoded` (the text is in subwords)."
            )


def check_places(raw_dir: Path, out_dir: Path, spm_model: Path | None) -> None:
    """Refuse inputs that lie where the output goes, which may be replaced as a whole."""
    for path in filter(None, (raw_dir, spm_model)):
        if path.resolve() == out_dir or out_dir in path.resolve().parents:
            raise UsageError(f"OUT_DIR must not hold the input {path}; choose another OUT_DIR.")
    if spm_model is not None and not spm_model.is_file():
        raise S2LError(f"There is no sentencepiece model {spm_model}.")


def check_form(files: list[Path], encoded: bool) -> None:
    """Refuse subwords where raw text was promised, and the reverse; name file and line."""
    marks = [BPE_MARKS["sentencepiece"]] if encoded else list(BPE_MARKS.values())
    for path in files:
        head = list(itertools.islice(read_lines(path), _HEAD_LINES))
        marked = [any(mark.search(line) for mark in marks) for line in head]
        if not encoded and sum(marked) > len(head) / 2:
            raise S2LError(
                f"{path} is in subwords (line {marked.index(True) + 1}); raw text is needed, or "
                "`--encoded`."
            )
        if encoded and sum(marked) < len(head) / 2:
            raise S2LError(
                f"{path} is not in subwords (line {marked.index(False) + 1} has no mark of "
                "sentencepiece's), but `--encoded` says so."
            )
