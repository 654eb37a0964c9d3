"""Detect whether text is in subwords or whole words, and join subwords."""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from fairseq_floater.data.parallel_text import TextDataError, read_lines

# The marks that a segmentation leaves in the text, by its name in fairseq's `--remove-bpe`.
BPE_MARKS = {"sentencepiece": re.compile("\u2581"), "subword_nmt": re.compile("@@( |$)")}
# A character that a sentencepiece model with `byte_fallback` does not know: "<0xE2><0x82><0xAC>" for €.
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+", re.IGNORECASE)
# How many lines of a file to look at.
_HEAD_LINES = 1_000


def join_pieces(line: str, kind: str) -> str:
    """Join the subwords of a line to words; ``kind`` is a key of :data:`BPE_MARKS`."""
    if kind == "subword_nmt":
        return BPE_MARKS[kind].sub("", line).rstrip()
    return join_bytes(line.replace(" ", "").replace("\u2581", " ").strip())


def join_bytes(line: str) -> str:
    """Replace sentencepiece's bytes by their characters: fairseq leaves them in the text that it joins."""

    def characters(run: re.Match[str]) -> str:
        code = bytes.fromhex(re.sub("<0x|>", "", run[0]))
        return code.decode(errors="replace").replace("\n", " ")

    return _BYTES.sub(characters, line)


def check_pieces(files: Iterable[Path], encoded: bool) -> None:
    """Raise TextDataError for files in whole words if ``encoded``, and in subwords if not."""
    marks = [BPE_MARKS["sentencepiece"]] if encoded else list(BPE_MARKS.values())
    for path in files:
        head = itertools.islice(read_lines(path), _HEAD_LINES)
        marked = [any(mark.search(line) for mark in marks) for line in head]
        if not encoded and sum(marked) > len(marked) / 2:
            raise TextDataError(
                f"{path} is in subwords (line {marked.index(True) + 1}), but raw text is needed: restore "
                "the words, and pass the subword model (`--spm-model`, in a configuration `data: spm-model`)."
            )
        if encoded and sum(marked) < len(marked) / 2:
            raise TextDataError(
                f"{path} is not in subwords (line {marked.index(False) + 1} has no "
                "sentencepiece mark), but `--encoded` says so."
            )
