"""The ways in which `prepare_text.sh` cuts text into subwords, behind one form.

``sentencepiece`` learns from raw text and gives raw text back; ``subword-nmt`` works on Moses tokens, as
the published WMT14 results were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
    """``folder`` holds the text in subwords, ``model`` is the file of what was learned."""

    folder: str
    model: str
    packages: tuple[str, ...]

    def learn(
        self, pairs: _Pairs, lines: int, path: Path, langs: _Langs, parameters: Any, workers: int
    ) -> None: ...

    def segmenter(self, path: Path, langs: _Langs, workers: int) -> Any:
        """A context whose value is a :class:`PairSegmenter`."""

    def write_dictionary(
        self, path: Path, texts: Sequence[Path], dict_path: Path, workers: int
    ) -> int: ...


class Sentencepiece:
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
