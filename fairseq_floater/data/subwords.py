"""The ways to segment text into subwords or whole words, and the encoding of splits by each.

``sentencepiece`` learns from raw text and gives raw text back; ``subword-nmt`` works on Moses tokens, as
in the published WMT14 results; ``none`` takes the words that spaces separate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.data.moses_subwords import MosesSegmenter
from fairseq_floater.data.parallel_text import TextDataError, batched, opened
from fairseq_floater.data.sentencepiece_subwords import FAIRSEQ_SYMBOLS, Segmenter

SUBWORDS = ("sentencepiece", "subword-nmt")
WORDS = "none"
_CONTROL = FAIRSEQ_SYMBOLS - {"<unk>"}
#: Why a training pair is left out -> in words.
LEFT_OUT = {"empty": "empty", "too_long": "over max-len", "ratio": "over max-ratio"}


class Segmentation(NamedTuple):
    """The folder of the text in subwords, the file of the model, and the packages that shape both.

    For whole words, the dictionary is the model.
    """

    folder: str
    model: str
    packages: tuple[str, ...]


SEGMENTATIONS = {
    "sentencepiece": Segmentation("spm", "spm.model", ("sentencepiece",)),
    "subword-nmt": Segmentation("bpe", "bpe.codes", ("sacremoses", "subword-nmt")),
    WORDS: Segmentation("words", "dict.txt", ()),
}


class WordSplitter:
    """Split pairs of raw sentences at spaces."""

    def pieces(
        self, batch: Sequence[tuple[str, str]], *, test: bool = False
    ) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the words of both sides; raises TextDataError if a word is a symbol of fairseq's."""
        for source, target in batch:
            sides = source.split(), target.split()
            if symbols := _CONTROL.intersection([*sides[0], *sides[1]]):
                raise TextDataError(f"The text has the word {min(symbols)}, a fairseq symbol.")
            yield sides


def encode_split(
    segmenter: Segmenter | MosesSegmenter | WordSplitter,
    pairs: Iterator[tuple[str, str]],
    split: str,
    langs: tuple[str, str],
    folders: Sequence[Path],
    *,
    max_len: int = 0,
    max_ratio: float = 0.0,
) -> dict[str, Any]:
    """Write a split in subwords, and its raw text, with the same sentence on each line.

    Train and valid lose the pairs with an empty side, with more than ``max_len`` subwords on one
    side or with one side more than ``max_ratio`` times as long as the other. Test splits keep every line.

    Args:
        folders: for the text in subwords, and for the raw text, which is not written for train.
    """
    is_test = split.startswith("test")
    dropped = dict.fromkeys(LEFT_OUT, 0)
    subwords = dict.fromkeys(langs, 0)
    counts: dict[str, Any] = {"lines": 0, "kept": 0, "dropped": dropped, "empty_kept": 0}
    counts["subwords"] = subwords
    written = folders[:1] if split == "train" else folders
    with opened(folder / f"{split}.{lang}" for folder in written for lang in langs) as files:
        for batch in batched(pairs):
            for pair, pieces in zip(batch, segmenter.pieces(batch, test=is_test)):
                counts["lines"] += 1
                fault = _fault(sorted(map(len, pieces)), max_len, max_ratio)
                if fault and not is_test:
                    dropped[fault] += 1
                    continue
                counts["kept"] += 1
                counts["empty_kept"] += fault == "empty"
                for lang, side in zip(langs, pieces):
                    subwords[lang] += len(side)
                for file, text in zip(files, [*map(" ".join, pieces), *pair]):
                    file.write(text + "\n")
    if counts["kept"] == 0:
        why = ", ".join(f"{number:,} {LEFT_OUT[fault]}" for fault, number in dropped.items())
        raise TextDataError(f"`{split}` has {counts['lines']:,} pairs, but none is left: {why}.")
    return counts


def _fault(lengths: list[int], max_len: int, max_ratio: float) -> str | None:
    short, long = lengths
    if short == 0:
        return "empty"
    if max_len and long > max_len:
        return "too_long"
    if max_ratio and long > max_ratio * short:
        return "ratio"
    return None
