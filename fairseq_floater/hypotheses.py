"""Reading what is scored: hypotheses of fairseq-generate in corpus order, and raw references."""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections.abc import Mapping, Sequence

from fairseq_floater.errors import UserError
from fairseq_floater.files import read_limited

# A hundred times WMT14's test set with all that fairseq-generate prints of it.
LARGEST = 1 << 29
FORMATS = ("auto", "generate", "plain")
# What a segmentation leaves in the text, by its name in fairseq's `--remove-bpe`.
BPE_MARKS = {"sentencepiece": re.compile("\u2581"), "subword_nmt": re.compile("@@( |$)")}
DROPPED_HINT = (
    "fairseq silently drops the sentences of batches whose size is no multiple of 8 unless "
    "`--required-batch-size-multiple 1` is given."
)
# Below this share of lines a mark is taken for text; unremoved pieces are in nearly every line.
_SEGMENTED_SHARE = 0.05
_TAGGED = re.compile(r"([STHDP])-([0-9]{1,12})\t(.*)")

FilePath = str | os.PathLike[str]


class ScoringError(UserError):
    """Input that cannot be scored honestly; the message is one sentence for a person."""


def read_lines(path: FilePath) -> list[str]:
    r"""The lines of a UTF-8 file: split at ``\n`` alone, less one ``\r`` each and a leading BOM.

    Raises:
        UserError: the file is larger than :data:`LARGEST` bytes.
        ScoringError: it cannot be read, or a line is no UTF-8 (names the line).
    """
    try:
        data = read_limited(path, LARGEST)
    except OSError as error:
        raise wrong(f"`{path}` must be a readable file", f"gives {error.strerror!r}") from None
    # Not str.splitlines: translations hold U+2028, \x0b, \x85 and the like inside a sentence.
    raw = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not raw[-1]:
        raw.pop()
    lines = []
    for number, line in enumerate(raw, 1):
        try:
            lines.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            found = f"line {number} holds the byte 0x{line[error.start]:02x}"
            raise wrong(f"`{path}` must be UTF-8", found) from None
    return lines


def read_references(path: FilePath) -> list[str]:
    """Raw references, one a line; empty lines count. Raises ScoringError for a file of no lines."""
    lines = read_lines(path)
    if not lines:
        raise wrong(f"`{path}` must hold one reference a line", "is empty")
    return lines


def read_hypotheses(
    path: FilePath, *, format: str = "auto", remove_bpe: str | None = None
) -> list[str]:
    """Hypotheses in corpus order, from fairseq-generate's output or from plain lines.

    Of fairseq's output the D lines are read, or the H lines where there are no others; of several
    hypotheses of a sentence the first, which is the best.

    Args:
        path: what fairseq-generate printed (all, or its D or H lines), or one hypothesis a line.
        format: one of :data:`FORMATS`; ``auto`` looks for lines such as ``D-7<tab>``.
        remove_bpe: the segmentation to undo, one of :data:`BPE_MARKS`; H lines need it. Text that
            has no pieces of it (any more) stays as it is.

    Raises:
        ScoringError: unreadable, no hypotheses, a sentence twice or missing (ids must be 0..n-1),
            pieces of words left in the text.
    """
    if format not in FORMATS:
        raise wrong(f"`format` must be one of {', '.join(FORMATS)}", f"is {format!r}")
    if remove_bpe is not None and remove_bpe not in BPE_MARKS:
        raise wrong(f"`remove_bpe` must be one of {', '.join(BPE_MARKS)}", f"is {remove_bpe!r}")
    lines = read_lines(path)
    if format == "generate" or (format == "auto" and any(map(_TAGGED.match, lines))):
        lines = _generated(lines, path, remove_bpe)
    if remove_bpe is not None:
        lines = _joined(lines, remove_bpe)
    for kind in BPE_MARKS:
        if _segmented(lines, kind):
            hint = f"; generate with `--remove-bpe` or score with `remove_bpe` {kind}."
            raise wrong(f"`{path}` must hold whole words", f"holds pieces of {kind}", hint)
    return lines


def read_first_tagged(path: FilePath, tag: str) -> dict[int, tuple[int, str]]:
    """Of each sentence in fairseq-generate's output the first line with ``tag`` (S or P, say).

    Returns (line number from 1, text after the tab) by sentence id; empty for plain lines. A
    sentence that comes twice is :func:`read_hypotheses`'s to refuse.
    """
    found: dict[int, tuple[int, str]] = {}
    for number, line in enumerate(read_lines(path), 1):
        match = _TAGGED.match(line)
        if match and match[1] == tag:
            found.setdefault(int(match[2]), (number, match[3]))
    return found


def wrong(rule: str, found: str, hint: str = "") -> ScoringError:
    """The error for ``rule`` where ``found`` was found."""
    return ScoringError(f"{rule}, but {found} instead{hint or '.'}")


def _generated(lines: list[str], path: FilePath, remove_bpe: str | None) -> list[str]:
    """The best hypothesis of each sentence of fairseq-generate's output, by id."""
    matches = ((number, _TAGGED.match(line)) for number, line in enumerate(lines, 1))
    tagged = [(number, m[1], int(m[2]), m[3]) for number, m in matches if m and m[1] != "P"]
    tags = {tag for _, tag, _, _ in tagged}
    if not tags & {"D", "H"}:
        raise wrong(f"`{path}` must hold hypotheses (D or H lines)", "holds none")
    wanted = "D" if "D" in tags else "H"
    if wanted == "H" and remove_bpe is None:
        hint = (
            f"; say with `remove_bpe` ({' or '.join(BPE_MARKS)}) which pieces of words they hold."
        )
        raise wrong(f"`{path}` must hold D lines", "holds only H lines", hint)
    best: dict[int, str] = {}
    first_line: dict[tuple[str, int], int] = {}
    previous, previous_value = -1, 0.0
    for number, tag, sentence, rest in tagged:
        # fairseq prints S and T once a sentence, then its hypotheses one after the other.
        first = first_line.setdefault((tag, sentence), number)
        once = tag in "ST" or (tag == wanted and sentence != previous)
        if once and first != number:
            found = f"line {number} brings sentence {sentence} of line {first} again"
            hint = "; are these two runs in one file?"
            raise wrong(f"`{path}` must hold each sentence once", found, hint)
        if tag == wanted:
            value, text = _scored(rest, path, number)
            if sentence == previous and value > previous_value:
                found = f"line {number} has a higher score for sentence {sentence}"
                rule = f"`{path}` must hold the best hypothesis of a sentence first"
                raise wrong(rule, found, "; are these two runs in one file?")
            best.setdefault(sentence, text)
            previous, previous_value = sentence, value
    # The other lines count too, so that a file that broke off is noticed.
    _check_gaps(best, 1 + max(sentence for _, sentence in first_line), path)
    return [best[sentence] for sentence in range(len(best))]


def _scored(rest: str, path: FilePath, number: int) -> tuple[float, str]:
    value, tab, text = rest.partition("\t")
    try:
        return float(value if tab else "none"), text
    except ValueError:
        rule = f"`{path}` must have a score, a tab and the text after the id"
        raise wrong(rule, f"line {number} has {rest!r}") from None


def _check_gaps(found: Mapping[int, str], size: int, path: FilePath) -> None:
    if len(found) < size:
        missing = itertools.islice((i for i in range(size) if i not in found), 5)
        names = ", ".join(map(str, missing)) + (", ..." if size - len(found) > 5 else "")
        rule = f"`{path}` must hold a hypothesis of each sentence from 0 to {size - 1}"
        raise wrong(rule, f"lacks {size - len(found)} ({names})", f"; {DROPPED_HINT}")


def _segmented(lines: Sequence[str], kind: str) -> bool:
    marked = sum(1 for line in lines if BPE_MARKS[kind].search(line))
    return marked > _SEGMENTED_SHARE * sum(1 for line in lines if line.strip())


def join_pieces(lines: Sequence[str], kind: str) -> list[str]:
    """The words of lines that are in pieces of ``kind``, a key of :data:`BPE_MARKS`."""
    if kind == "subword_nmt":
        return [BPE_MARKS[kind].sub("", line).rstrip() for line in lines]
    return [line.replace(" ", "").replace("\u2581", " ").strip() for line in lines]


def _joined(lines: list[str], kind: str) -> list[str]:
    # Joining sentencepieces deletes every space: never to be done to text without pieces.
    if kind == "sentencepiece" and not _segmented(lines, kind):
        return lines
    return join_pieces(lines, kind)
