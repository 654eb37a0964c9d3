"""Turn lines of subwords into fairseq's binary data, and choose the subwords and dictionary for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.understanding.subwords import FOLDER, KINDS, Subwords, load_subwords
from fairseq_floater.errors import UsageError

# In bytes. Smaller files are done before other processes have started.
_WORTH_PROCESSES = 1 << 24


class Vocabulary(NamedTuple):
    """The subwords of a model, and its ``dict.txt`` (without ``<mask>``, which fairseq appends)."""

    subwords: Subwords
    dictionary: Path

    @property
    def files(self) -> list[Path]:
        return [*self.subwords.files, self.dictionary]

    @classmethod
    def like(cls, folder: Path) -> Vocabulary:
        """Read the vocabulary of prepared data (``bpe/``, ``dict.txt``)."""
        return cls(load_subwords(folder / FOLDER), _dictionary(folder / "dict.txt"))

    @classmethod
    def chosen(
        cls,
        like: Path | None = None,
        bpe: str | None = None,
        bpe_dir: Path | None = None,
        dictionary: Path | None = None,
    ) -> Vocabulary:
        """Return the vocabulary of the options ``--like``, or ``--bpe --bpe-dir --dict``.

        Args:
            dictionary: the ``dict.txt`` of the model to be trained; None: that in ``bpe_dir``.
        """
        if like is not None:
            if bpe or bpe_dir or dictionary:
                raise UsageError(
                    "`--like` replaces --bpe, --bpe-dir and --dict: give either `--like` or those."
                )
            return cls.like(like)
        if bpe is None or bpe_dir is None:
            raise UsageError("Give --like, or --bpe with --bpe-dir and --dict.")
        return cls(KINDS[bpe](bpe_dir), _dictionary(dictionary or bpe_dir / "dict.txt"))


def _dictionary(path: Path) -> Path:
    if not path.is_file():
        raise TextDataError(f"The dictionary of the model, {path}, is missing.")
    return path


def write_lines(path: Path, lines: Iterable[list[str]]) -> dict[str, int]:
    """Write lines of subwords; return the number of ``subwords``, in all and in the ``longest`` line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = {"subwords": 0, "longest": 0}
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for words in lines:
            counts["subwords"] += len(words)
            counts["longest"] = max(counts["longest"], len(words))
            file.write(" ".join(words) + "\n")
    return counts


class Binarised(NamedTuple):
    """The number of lines and words in a file, and of words that the dictionary does not have."""

    lines: int
    words: int
    unknown: int


def binarise(text: Path, dictionary: Path, prefix: Path, *, workers: int = 1) -> Binarised:
    """Write ``prefix.bin`` and ``prefix.idx`` with fairseq's binariser, an end symbol after each line."""
    from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer  # slow to import
    from fairseq.data import Dictionary

    prefix.parent.mkdir(parents=True, exist_ok=True)
    beside = prefix.parent / "dict.txt"
    if not beside.exists():
        shutil.copyfile(dictionary, beside)
    words = Dictionary.load(str(dictionary))
    done = FileBinarizer.multiprocess_dataset(
        str(text),
        "mmap",
        VocabularyDatasetBinarizer(words),
        str(prefix),
        vocab_size=len(words),
        num_workers=workers if text.stat().st_size > _WORTH_PROCESSES else 1,
    )
    return Binarised(done.num_seq, done.num_tok - done.num_seq, done.num_replaced)


def check_dictionary(counts: Binarised, dictionary: Path, text: str) -> None:
    """Raise TextDataError if the dictionary lacks more than half of the subwords."""
    if 2 * counts.unknown > counts.words:
        raise TextDataError(
            f"{dictionary} must be of the same BPE, but lacks {counts.unknown:,} of {counts.words:,} "
            f"subwords of {text}."
        )
