"""Read fairseq-generate's hypotheses in corpus order, and raw references."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairseq_floater.data.parallel_text import FilePath
from fairseq_floater.data.pieces import BPE_MARKS, join_bytes, join_pieces
from fairseq_floater.errors import say, shown
from fairseq_floater.evaluation.lines import TextFile, scoring_error

FORMATS = ("auto", "generate", "plain")
DROPPED_HINT = (
    "fairseq silently drops the sentences of batches whose size is not a multiple of 8 unless "
    "`--required-batch-size-multiple 1` is given."
)
# A mark in a smaller share of lines counts as text: unjoined subwords are in nearly every line.
_SEGMENTED_SHARE = 0.05
_TAGGED = re.compile(r"([STHDP])-([0-9]{1,12})\t(.*)", re.DOTALL)
# In every line of fairseq's log; the output of fairseq-generate begins and ends with such lines.
_LOG = "| INFO |"


class TaggedLine(NamedTuple):
    """A line of fairseq-generate's output: line number from 1, tag (S, T, H, D or P), sentence id, text."""

    number: int
    tag: str
    sentence: int
    text: str


def read_references(path: FilePath) -> list[str]:
    """Return raw references, one per line, empty ones included; raises ScoringError for another file."""
    lines = TextFile(path).lines
    if not lines:
        raise scoring_error(f"`{path}` must hold one reference a line", "is empty")
    if sum(map(bool, map(_TAGGED.match, lines))) > len(lines) / 2:
        hint = " (were the two files swapped?)."
        raise scoring_error(f"`{path}` must hold raw text", "is fairseq-generate's output", hint)
    return lines


def read_hypotheses(
    path: FilePath | TextFile, *, format: str = "auto", remove_bpe: str | None = None
) -> list[str]:
    """Return hypotheses in corpus order, from fairseq-generate's output or from plain lines.

    Fairseq's D lines are taken, or the H lines if there are no D lines. If a sentence has several
    hypotheses, the first is taken, which is the best.

    Args:
        path: the output of fairseq-generate (all of it, or its D or H lines), or one hypothesis per
            line; a :class:`TextFile` if the caller reads other lines of it too.
        format: one of :data:`FORMATS`; ``auto`` looks for lines such as ``D-7<tab>``.
        remove_bpe: the segmentation to undo, a key of ``BPE_MARKS`` (data.pieces); required for H
            lines. Text without such subwords stays as it is.

    Raises:
        ScoringError: the file is unreadable or has no hypotheses, a sentence is missing or there
            twice (ids must be 0..n-1), or subwords are left in the text.
    """
    file = path if isinstance(path, TextFile) else TextFile(path)
    lines = file.lines
    if format != "plain":
        tagged = list(read_tagged(file))
        if format == "generate" or tagged:
            lines = _best_hypotheses(file, tagged, remove_bpe)
    # Joining sentencepieces deletes every space: never do it to text without pieces.
    if remove_bpe and (remove_bpe == "subword_nmt" or remove_bpe in _segmentations(lines)):
        lines = [join_pieces(line, remove_bpe) for line in lines]
    refuse_pieces(
        lines, file.path, "; generate with `--remove-bpe` or score with `--remove-bpe {kind}`."
    )
    return [join_bytes(line) for line in lines]


def refuse_pieces(lines: Sequence[str], path: FilePath, hint: str = "; give raw text.") -> None:
    """Raise ScoringError if the lines of ``path`` are in subwords; ``hint`` may hold {kind}."""
    for kind in _segmentations(lines):
        fault = f"holds pieces of {kind}"
        raise scoring_error(f"`{path}` must hold whole words", fault, hint.format(kind=kind))


def read_tagged(file: TextFile, tag: str | None = None) -> Iterator[TaggedLine]:
    """Yield the tagged lines of fairseq-generate's output, or those of one tag; plain text has none."""
    for number, line in enumerate(file.lines, start=1):
        match = _TAGGED.match(line)
        if match and tag in (None, match[1]):
            yield TaggedLine(number, match[1], int(match[2]), match[3])


def warn_of_other_targets(file: TextFile, references: Sequence[str], name: FilePath) -> None:
    """Warn if most targets that fairseq read (T lines) differ from the references.

    Another test set of the same size gets a score without an error. Case, spaces and punctuation may differ.
    """
    lines = [line for line in read_tagged(file, "T") if "<unk>" not in line.text]
    pairs = ((line.text.casefold(), references[line.sentence].casefold()) for line in lines)
    if sum(not same_text(*pair) for pair in pairs) > len(lines) / 2:
        say(
            f"warning: most targets (T lines) in {file.path} differ from {name}: is it another test set, "
            "or in another order?"
        )


def same_text(ours: str, theirs: str) -> bool:
    """Return whether two texts have the same letters and digits: subword models change the rest.

    Moses writes an apostrophe as ``&apos;``.
    """
    return ours == theirs or _plain(ours) == _plain(theirs)


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", html.unescape(join_bytes(text)))
    return "".join(c for c in text if c.isalnum())


def _best_hypotheses(
    file: TextFile, tagged: Sequence[TaggedLine], remove_bpe: str | None
) -> list[str]:
    wanted = _wanted_tag(file, {line.tag for line in tagged}, remove_bpe)
    best: dict[int, str] = {}
    first: dict[tuple[str, int], int] = {}  # the number of the first line by tag and sentence
    previous, previous_value = -1, 0.0
    for number, tag, sentence, text in tagged:
        if tag not in ("S", "T", wanted):
            continue
        earlier = first.setdefault((tag, sentence), number)
        # fairseq prints S and T once per sentence, then its hypotheses one after the other.
        if earlier != number and not (tag == wanted and sentence == previous):
            refusal = f"line {number} repeats sentence {sentence} of line {earlier}"
            hint = "; are these two runs in one file?"
            raise scoring_error(f"`{file.path}` must hold each sentence once", refusal, hint)
        if tag == wanted:
            value, hypothesis = _split_score(file, number, text)
            if sentence == previous and value > previous_value:
                refusal = f"line {number} has a higher score for sentence {sentence}"
                rule = f"`{file.path}` must hold the best hypothesis of a sentence first"
                raise scoring_error(rule, refusal, "; are these two runs in one file?")
            best.setdefault(sentence, hypothesis)
            previous, previous_value = sentence, value
    _refuse_broken_off(file, tagged)
    # Count the other lines too, so that a file that broke off is noticed.
    size = 1 + max(line.sentence for line in tagged if line.tag != "P")
    if lacking := size - len(best):
        missing = itertools.islice((str(i) for i in range(size) if i not in best), 5)
        names = ", ".join(missing) + (", ..." if lacking > 5 else "")
        rule = f"`{file.path}` must hold a hypothesis of each sentence from 0 to {size - 1}"
        raise scoring_error(rule, f"lacks {lacking} ({names})", f"; {DROPPED_HINT}")
    return [best[i] for i in range(size)]


def _wanted_tag(file: TextFile, tags: set[str], remove_bpe: str | None) -> str:
    if "D" in tags:
        return "D"
    if "H" not in tags:
        raise scoring_error(f"`{file.path}` must hold hypotheses (D or H lines)", "holds none")
    if remove_bpe is None:
        kinds = " or ".join(BPE_MARKS)
        hint = f"; name the kind of their subwords with `--remove-bpe` ({kinds})."
        raise scoring_error(f"`{file.path}` must hold D lines", "holds only H lines", hint)
    return "H"


def _split_score(file: TextFile, number: int, text: str) -> tuple[float, str]:
    value, tab, hypothesis = text.partition("\t")
    try:
        return float(value if tab else "none"), hypothesis
    except ValueError:
        rule = f"`{file.path}` must have a score, a tab and the text after the id"
        raise scoring_error(rule, f"line {number} has {shown(text)}") from None


def _refuse_broken_off(file: TextFile, tagged: Sequence[TaggedLine]) -> None:
    """Raise ScoringError if the output of fairseq-generate is truncated."""
    last = tagged[-1].number
    if last < len(file.lines):
        return
    if _LOG in file.lines[0]:
        sign = "fairseq's closing lines are missing"
    elif not file.ends_in_newline and len({line.tag for line in tagged}) > 1:
        sign = "that line has no newline"
    else:
        return
    hint = "; was fairseq-generate stopped, or the disk full? Generate it again."
    raise scoring_error(f"`{file.path}` must be complete", f"ends at line {last} ({sign})", hint)


def _segmentations(lines: Sequence[str]) -> list[str]:
    """Return the kinds of subwords, keys of :data:`BPE_MARKS`, that the lines hold."""
    filled = sum(line.strip() != "" for line in lines)
    return [
        kind
        for kind, mark in BPE_MARKS.items()
        if sum(mark.search(line) is not None for line in lines) > _SEGMENTED_SHARE * filled
    ]
