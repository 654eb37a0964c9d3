"""Cut text into subwords in one of two ways behind one interface, for `prepare_text.sh`.

``sentencepiece`` learns from raw text and gives raw text back; ``subword-nmt`` works on Moses tokens, as
in the published WMT14 results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fairseq_floater.data.moses_subwords import (
    MosesSegmenter,
    train_codes,
    write_counted_dictionary,
)
from fairseq_floater.data.sentencepiece_subwords import (
    PairSegmenter,
    Segmenter,
    train_subword,
    write_dictionary,
)

_Langs = tuple[str, str]
_Pairs = Iterator[tuple[str, str]]


class Segmentation(Protocol):
    """Learn subwords, cut text by them and write their dictionary.

    Attributes:
        folder: the folder of the text in subwords.
        model: the file of the learned model.
        packages: the packages whose versions shape the result.
    """

    folder: str
    model: str
    packages: tuple[str, ...]

    def learn(
        self, pairs: _Pairs, lines: int, path: Path, langs: _Langs, parameters: Any, workers: int
    ) -> None:
        """Learn from ``lines`` pairs of ``langs`` and write the model to ``path``."""

    def segmenter(
        self, path: Path, langs: _Langs, workers: int
    ) -> AbstractContextManager[PairSegmenter]:
        """Return a context that gives what cuts raw pairs of ``langs`` by the model at ``path``."""

    def write_dictionary(
        self, path: Path, texts: Sequence[Path], dict_path: Path, workers: int
    ) -> int:
        """Write the joint dictionary of the model at ``path`` and ``texts``; return its entries."""


class Sentencepiece:
    """Use one sentencepiece model of both languages."""

    folder = "spm"
    model = "spm.model"
    packages: tuple[str, ...] = ("sentencepiece",)

    def learn(
        self, pairs: _Pairs, lines: int, path: Path, langs: _Langs, parameters: Any, workers: int
    ) -> None:
        coverage = parameters["character_coverage"]
        vocab = parameters["vocab"]
        train_subword(pairs, lines, path, vocab_size=vocab, character_coverage=coverage)

    @contextmanager
    def segmenter(self, path: Path, langs: _Langs, workers: int) -> Iterator[PairSegmenter]:
        yield Segmenter(path, workers)

    def write_dictionary(
        self, path: Path, texts: Sequence[Path], dict_path: Path, workers: int
    ) -> int:
        return write_dictionary(path, dict_path)


class SubwordNmt:
    """Use Moses tokens and a joint byte-pair encoding."""

    folder = "bpe"
    model = "bpe.codes"
    packages: tuple[str, ...] = ("sacremoses", "subword-nmt")

    def learn(
        self, pairs: _Pairs, lines: int, path: Path, langs: _Langs, parameters: Any, workers: int
    ) -> None:
        train_codes(pairs, langs, path, merges=parameters["vocab"], workers=workers)

    @contextmanager
    def segmenter(self, path: Path, langs: _Langs, workers: int) -> Iterator[PairSegmenter]:
        with closing(MosesSegmenter(path, langs, workers)) as segmenter:
            yield segmenter

    def write_dictionary(
        self, path: Path, texts: Sequence[Path], dict_path: Path, workers: int
    ) -> int:
        return write_counted_dictionary(texts, dict_path, workers)


SEGMENTATIONS: dict[str, Segmentation] = {
    "sentencepiece": Sentencepiece(),
    "subword-nmt": SubwordNmt(),
}
