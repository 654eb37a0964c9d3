"""Segment text into subwords, with the characters of each one, by GPT-2's BPE or sentencepiece.

Prepared data keep the files of their subwords in a folder ``bpe``, for :func:`load_subwords`.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.sentencepiece_subwords import (
    FAIRSEQ_SYMBOLS,
    load_model,
    plain_spaces,
    without_symbols,
)
from fairseq_floater.records import read_json

FOLDER = "bpe"
_SYMBOLS = FAIRSEQ_SYMBOLS | {"<mask>"}


class Encoded(NamedTuple):
    """Subwords as in the dictionary, and the span ``text[begin:end]`` of each one.

    Spans have no white space at their ends. If subwords are parts of one character, some may have an
    empty span.
    """

    subwords: list[str]
    spans: list[tuple[int, int]]


class Subwords(ABC):
    """Segment text into subwords."""

    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]  # of the files, in the folder

    def __init__(self, folder: Path) -> None:
        self.files = [folder / name for name in self.names]
        for path in self.files:
            if not path.is_file():
                raise TextDataError(f"{path}, a file of --bpe {self.kind}, is missing.")

    @abstractmethod
    def encode_lines(self, lines: Sequence[str]) -> list[list[str]]:
        """Return the subwords of each line, without an end symbol; uses all cores."""

    @abstractmethod
    def encode_with_offsets(self, text: str) -> Encoded:
        """Return the subwords of a text and the characters of each one."""

    def encode(self, text: str) -> list[str]:
        """Return the subwords of a text, without an end symbol."""
        return self.encode_lines([text])[0]

    def store(self, folder: Path) -> None:
        """Copy the files into ``folder``, where :func:`load_subwords` finds them."""
        folder.mkdir()
        for path in self.files:
            shutil.copyfile(path, folder / path.name)


class Gpt2Subwords(Subwords):
    """GPT-2's byte-level BPE (``encoder.json``, ``vocab.bpe``), which RoBERTa uses too.

    Subwords are GPT-2's numbers, as in RoBERTa's ``dict.txt``.
    """

    kind = "gpt2"
    names = ("encoder.json", "vocab.bpe")

    def __init__(self, folder: Path) -> None:
        # From an optional extra, which tables and pages do not need.
        import tokenizers

        super().__init__(folder)
        numbers = read_json(self.files[0])
        lines = self.files[1].read_text(encoding="utf-8").split("\n")[1:]  # the first is a comment
        byte_level = tokenizers.pre_tokenizers.ByteLevel
        # A symbol without a number would be dropped without an error.
        if not isinstance(numbers, dict) or not numbers.keys() >= set(byte_level.alphabet()):
            raise TextDataError(f"{self.files[0]} must have a number for each of the 256 bytes.")
        try:
            merges = [(first, second) for first, second in map(str.split, filter(None, lines))]
            model = tokenizers.models.BPE(vocab=numbers, merges=merges)
        except Exception as error:  # the package raises nothing narrower
            raise TextDataError(f"{folder} holds no GPT-2 BPE: {error}.") from None
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)

    def encode_lines(self, lines: Sequence[str]) -> list[list[str]]:
        encoded = self._tokenizer.encode_batch(list(lines), add_special_tokens=False)
        return [list(map(str, line.ids)) for line in encoded]

    def encode_with_offsets(self, text: str) -> Encoded:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        spans = [_trimmed(text, *span) for span in encoded.offsets]
        return Encoded(list(map(str, encoded.ids)), spans)


class SentencepieceSubwords(Subwords):
    kind = "sentencepiece"
    names = ("sentencepiece.model",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._model = load_model(self.files[0])

    def encode_lines(self, lines: Sequence[str]) -> list[list[str]]:
        pieces = self._model.encode([*map(plain_spaces, lines)], out_type=str)
        return [without_symbols(line, _SYMBOLS) for line in pieces]

    def encode_with_offsets(self, text: str) -> Encoded:
        subwords, spans = [], []
        for piece, begin, end in self._pieces(text):
            parts = without_symbols([piece], _SYMBOLS)
            subwords += parts
            spans += [_trimmed(text, begin, end)] * len(parts)
        return Encoded(subwords, spans)

    def _pieces(self, text: str) -> list[tuple[str, int, int]]:
        text, older = plain_spaces(text), getattr(self._model, "encode_as_immutable_proto", None)
        if older is not None:
            return [(piece.piece, piece.begin, piece.end) for piece in older(text).pieces]
        # sentencepiece 0.2.3 has another name for the same, and refuses the older one.
        encoded: Any = self._model.encode(text, out_type="offset_mapping")
        return [(piece, *span) for piece, span in zip(encoded["pieces"], encoded["offsets"])]


KINDS = {kind.kind: kind for kind in (Gpt2Subwords, SentencepieceSubwords)}


def load_subwords(folder: Path) -> Subwords:
    """Read the subwords of the folder ``bpe`` of prepared data."""
    for kind in KINDS.values():
        if (folder / kind.names[0]).is_file():
            return kind(folder)
    raise TextDataError(
        f"{folder} holds no subwords: neither encoder.json nor sentencepiece.model."
    )


def _trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    piece = text[begin:end]
    begin += len(piece) - len(piece.lstrip())
    return begin, begin + len(piece.strip())
