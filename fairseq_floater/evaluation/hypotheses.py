"""Reading what is scored: hypotheses of fairseq-generate in corpus order, and raw references."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import partial

from fairseq_floater.errors import shown
from fairseq_floater.evaluation.lines import FilePath as FilePath
from fairseq_floater.evaluation.lines import Numbers, TextFile, TextLines
from fairseq_floater.evaluation.lines import ScoringError as ScoringError
from fairseq_floater.evaluation.lines import wrong as wrong

FORMATS = ("auto", "generate", "plain")
# What a segmentation leaves in the text, by its name in fairseq's `--remove-bpe`.
BPE_MARKS = {"sentencepiece": re.compile("\u2581"), "subword_nmt": re.compile("@@( |$)")}
DROPPED_HINT = (
    "fairseq silently drops the sentences of batches whose size is no multiple of 8 unless "
    "`--required-batch-size-multiple 1` is given."
)
# Below this share of lines a mark is taken for text; unremoved pieces are in nearly every line.
_SEGMENTED_SHARE = 0.05
_TAGGED = re.compile(rb"([STHDP])-([0-9]{1,12})\t(.*)", re.DOTALL)
# In a line of fairseq's log, which begins and ends what fairseq-generate prints.
_LOG = b"| INFO |"
# Bits that say which lines of a sentence were met.
_MET = {"S": 1, "T": 2, "H": 4, "D": 8}


def _all_lines(file: TextFile) -> TextLines:
    places, count = Numbers(), 0
    for line in file:
        places[count] = line.place
        count = line.number
    return TextLines(file, places, count)


def read_references(path: FilePath) -> TextLines:
    """Raw references, one a line; empty lines count. Raises ScoringError for a file of no lines."""
    lines = _all_lines(TextFile(path))
    if not lines:
        raise wrong(f"`{path}` must hold one reference a line", "is empty")
    return lines


def read_hypotheses(
    path: FilePath | TextFile, *, format: str = "auto", remove_bpe: str | None = None
) -> TextLines:
    """Hypotheses in corpus order, from fairseq-generate's output or from plain lines.

    Of fairseq's output the D lines are read, or the H lines where there are no others; of several
    hypotheses of a sentence the first, which is the best. They are read again whenever they are
    asked for, so that a file of any size takes the same memory.

    Args:
        path: what fairseq-generate printed (all, or its D or H lines), or one hypothesis a line; a
            :class:`TextFile` where more is read of it, as a pipe can be opened but once.
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
    file = path if isinstance(path, TextFile) else TextFile(path)
    lines = _all_lines(file)
    if format != "plain":
        output = _GenerateOutput(file, remove_bpe, len(lines))
        if format == "generate" or output.tags:
            lines = output.best()
    if remove_bpe is not None:
        lines = _joined(lines, remove_bpe)
    for kind in _segmentations(lines):
        hint = f"; generate with `--remove-bpe` or score with `remove_bpe` {kind}."
        raise wrong(f"`{file.path}` must hold whole words", f"holds pieces of {kind}", hint)
    return lines


def read_tagged(file: TextFile, tag: str) -> Iterator[tuple[int, int, str]]:
    """The lines of fairseq-generate's output with ``tag`` (S or P, say); of the best hypothesis the first.

    Yields (line number from 1, sentence, text after the tab); nothing for plain lines.
    """
    for line in file:
        match = _TAGGED.match(line.data)
        if match and match[1] == tag.encode():
            yield line.number, int(match[2]), match[3].decode("utf-8")


class _GenerateOutput:
    """fairseq-generate's output in a file of ``lines`` lines; ``tags`` are those that it has."""

    def __init__(self, file: TextFile, remove_bpe: str | None, lines: int):
        self.file, self.path = file, file.path
        self.remove_bpe, self.lines = remove_bpe, lines
        self.places, self.met = Numbers(), Numbers()
        self.tags: set[str] = set()
        # The last sentence: its number, its last line, and the tags of its lines and of those before.
        self.last, self.end = -1, 0
        self.last_tags: set[str] = set()
        self.tags_before: set[str] = set()
        for number, tag, sentence, *_ in self._tagged():
            if sentence != self.last:
                self.tags_before, self.last_tags = self.last_tags, set()
            self.last, self.end = sentence, number
            self.last_tags.add(tag)
            self.tags.add(tag)

    def _tagged(self) -> Iterator[tuple[int, str, int, int, bytes]]:
        """Number, tag and sentence of each line that has a tag, where its text begins, and the text."""
        for line in self.file:
            match = _TAGGED.match(line.data)
            if match:
                tag = match[1].decode()
                yield line.number, tag, int(match[2]), line.place + match.start(3), match[3]

    def best(self) -> TextLines:
        """The best hypothesis of each sentence, by id."""
        wanted = self._wanted_tag()
        found, largest, beyond = 0, -1, set()
        previous, previous_value = -1, 0.0
        for number, tag, sentence, place, rest in self._tagged():
            if tag == "P":
                continue
            # The other lines count too, so that a file that broke off is noticed.
            largest = max(largest, sentence)
            if sentence < self.lines:
                is_first = self._meet(tag, sentence)
            else:  # too few lines for so many sentences: told below
                is_first = tag != wanted or sentence not in beyond
                beyond |= {sentence} if tag == wanted else set()
            # fairseq prints S and T once a sentence, then its hypotheses one after the other.
            once = tag in "ST" or (tag == wanted and sentence != previous)
            if once and not is_first:
                self._refuse_repeated(number, tag, sentence)
            if tag == wanted:
                value, start = self._scored(rest, number)
                if sentence == previous and value > previous_value:
                    text = f"line {number} has a higher score for sentence {sentence}"
                    rule = f"`{self.path}` must hold the best hypothesis of a sentence first"
                    raise wrong(rule, text, "; are these two runs in one file?")
                if is_first and sentence < self.lines:
                    self.places[sentence] = place + start
                    found += 1
                previous, previous_value = sentence, value
        self._refuse_broken_off()
        if found <= largest:
            self._refuse_gaps(largest + 1, wanted, found + len(beyond), beyond)
        return TextLines(self.file, self.places, found)

    def _wanted_tag(self) -> str:
        if not self.tags & {"D", "H"}:
            raise wrong(f"`{self.path}` must hold hypotheses (D or H lines)", "holds none")
        if "D" not in self.tags and self.remove_bpe is None:
            kinds = " or ".join(BPE_MARKS)
            hint = f"; say with `remove_bpe` ({kinds}) which pieces of words they hold."
            raise wrong(f"`{self.path}` must hold D lines", "holds only H lines", hint)
        return "D" if "D" in self.tags else "H"

    def _meet(self, tag: str, sentence: int) -> bool:
        """Note a line; returns whether it is the sentence's first with this tag."""
        met = self.met[sentence]
        if met & _MET[tag]:
            return False
        self.met[sentence] = met | _MET[tag]
        return True

    def _refuse_repeated(self, number: int, tag: str, sentence: int) -> None:
        met = ((n, t, s) for n, t, s, *_ in self._tagged())
        first = next(n for n, t, s in met if (t, s) == (tag, sentence))
        found = f"line {number} brings sentence {sentence} of line {first} again"
        hint = "; are these two runs in one file?"
        raise wrong(f"`{self.path}` must hold each sentence once", found, hint)

    def _scored(self, rest: bytes, number: int) -> tuple[float, int]:
        """The score before the text of a hypothesis, and where the text begins."""
        value, tab, _ = rest.partition(b"\t")
        try:
            return float(value if tab else b"none"), len(value) + 1
        except ValueError:
            rule = f"`{self.path}` must have a score, a tab and the text after the id"
            raise wrong(rule, f"line {number} has {shown(rest.decode('utf-8'))}") from None

    def _refuse_broken_off(self) -> None:
        """fairseq-generate prints a sentence's lines together, and after the last sentence its score."""
        if self.end < self.lines:
            return
        lacking = self.tags - self.last_tags
        if lacking and self.tags_before == self.tags:  # else the lines were sorted
            found = f"sentence {self.last} lacks its {', '.join(sorted(lacking))} line"
        elif len(self.tags) > 1 and not self.file.ends_in_newline():
            found = "that line has no end"
        elif _LOG in next(iter(self.file)).data:
            found = "fairseq's closing lines are not there"
        else:
            return
        rule = f"`{self.path}` must be whole"
        hint = "; was fairseq-generate stopped, or the disk full? Generate it again."
        raise wrong(rule, f"breaks off at line {self.end} ({found})", hint)

    def _refuse_gaps(self, size: int, wanted: str, found: int, beyond: set[int]) -> None:
        missing = (i for i in range(size) if i not in beyond and not self.met[i] & _MET[wanted])
        names = ", ".join(map(str, itertools.islice(missing, 5))) + ", ..." * (size - found > 5)
        rule = f"`{self.path}` must hold a hypothesis of each sentence from 0 to {size - 1}"
        raise wrong(rule, f"lacks {size - found} ({names})", f"; {DROPPED_HINT}")


def _segmentations(lines: Iterable[str]) -> list[str]:
    """The kinds of :data:`BPE_MARKS` in whose pieces the lines are, found in one reading."""
    marked, filled = dict.fromkeys(BPE_MARKS, 0), 0
    for line in lines:
        for kind, mark in BPE_MARKS.items():
            marked[kind] += mark.search(line) is not None
        filled += not line.isspace() and line != ""
    return [kind for kind, count in marked.items() if count > _SEGMENTED_SHARE * filled]


def join_pieces(line: str, kind: str) -> str:
    """The words of a line that is in pieces of ``kind``, a key of :data:`BPE_MARKS`."""
    if kind == "subword_nmt":
        return BPE_MARKS[kind].sub("", line).rstrip()
    return line.replace(" ", "").replace("\u2581", " ").strip()


def _joined(lines: TextLines, kind: str) -> TextLines:
    # Joining sentencepieces deletes every space: never to be done to text without pieces.
    if kind == "sentencepiece" and kind not in _segmentations(lines):
        return lines
    return lines.changed(partial(join_pieces, kind=kind))
