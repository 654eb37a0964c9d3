"""Read raw parallel text strictly, one file per side.

Only "\\n" ends a line. Other characters at which some tool breaks lines (form feed, U+2028,
...) become spaces, so that line k is the same sentence for sentencepiece, fairseq and the scorer.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

from fairseq_floater.errors import UsageError, UserError, say, shown

# A language code, such as en_XX or zh-Hans, as in score signatures and file names (hence no `.`).
LANGUAGE = re.compile(r"[A-Za-z]\w*(-\w+)*", re.ASCII)
LINE_BREAKS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_TO_SPACES = str.maketrans(dict.fromkeys(LINE_BREAKS, " "))
# Far above any sentence: sentencepiece learns from lines of up to 16,384 bytes.
LONGEST_LINE = 1 << 20
FilePath = str | os.PathLike[str]
_Item = TypeVar("_Item")


class TextDataError(UserError):
    """Text that cannot be used; the message is one sentence for a person."""


def check_languages(source: str, target: str) -> None:
    """Raise UsageError if the languages are equal, or cannot be part of a file name."""
    for language in (source, target):
        if not LANGUAGE.fullmatch(language):
            rule = "A language must be a letter, then letters, digits, _ or -"
            raise UsageError(f"{rule}, but is {shown(language)}.")
    if source == target:
        raise UsageError(f"`--src` and `--tgt` must differ, but both are {source!r}.")


def first_subtag(language: str) -> str:
    """Return the language of a code in small letters, without script or country: zh of zh-Hans."""
    return re.split("[-_]", language)[0].lower()


def find_splits(raw_dir: Path, src: str, tgt: str) -> list[str]:
    """Return train, valid and, sorted, every test split that has a file for at least one side."""
    if not raw_dir.is_dir():
        raise TextDataError(f"There is no folder {raw_dir}.")
    pattern = re.compile(rf"(test.*?)\.({re.escape(src)}|{re.escape(tgt)})(\.gz)?")
    matches = [pattern.fullmatch(path.name) for path in raw_dir.iterdir()]
    splits = ["train", "valid"]
    for name in sorted({match[1] for match in matches if match}):
        if re.fullmatch(r"[\w.-]+", name):
            splits.append(name)
        else:  # fairseq separates test sets by commas, the shell by spaces
            rule = "its name may have only letters, digits, _, - and ."
            say(f"warning: the test set `{name}` is left out: {rule}")
    return splits


def text_file(raw_dir: Path, split: str, lang: str) -> Path:
    """Return the file of one side of a split, plain or gzipped; raises TextDataError for none or both."""
    return plain_or_zipped(raw_dir / f"{split}.{lang}")


def plain_or_zipped(plain: Path) -> Path:
    """Return ``plain`` or the gzipped file beside it; raises TextDataError for none or both."""
    zipped = plain.with_name(f"{plain.name}.gz")
    files = [path for path in (plain, zipped) if path.is_file()]
    if len(files) > 1:
        raise TextDataError(f"{plain} and {zipped} both exist; remove one of them.")
    if not files:
        raise TextDataError(f"{plain} is missing (so is {zipped.name}).")
    return files[0]


def byte_lines(path: FilePath, fault: type[UserError]) -> Iterator[bytes]:
    """Yield the lines of a plain or gzipped file, cut after LONGEST_LINE + 1 bytes.

    Without a newline, or from a few bytes of gzip, a line could fill the memory.

    Raises:
        fault: the file ends in .gz and is not valid gzip.
    """
    try:
        with gzip.open(path) if str(path).endswith(".gz") else Path(path).open("rb") as file:
            yield from iter(lambda: file.readline(LONGEST_LINE + 1), b"")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise fault(f"{path} is not a valid gzip file: {str(error).rstrip('.')}.") from None


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, split at "\\n" only; other line breaks become spaces.

    Raises:
        TextDataError: a line is too long, holds NUL or is not UTF-8, or the gzip file is broken.
    """
    for number, line in enumerate(byte_lines(path, TextDataError), start=1):
        if len(line) > LONGEST_LINE:
            raise TextDataError(
                f"{path}, line {number} must have at most {LONGEST_LINE:,} bytes, but is longer."
            )
        if b"\0" in line:
            raise TextDataError(f"{path}, line {number} holds a NUL character.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TextDataError(
                f"{path}, line {number} is not valid UTF-8 (byte {error.start + 1} of it)."
            ) from None
        yield text.rstrip("\r\n").translate(_TO_SPACES)


def read_pairs(raw_dir: Path, split: str, src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a split; raises TextDataError if a side is empty or lengths differ."""
    paths = [text_file(raw_dir, split, lang) for lang in (src, tgt)]
    lengths = [0, 0]
    for source, target in itertools.zip_longest(*map(read_lines, paths)):
        lengths[0] += source is not None
        lengths[1] += target is not None
        if source is not None and target is not None:
            yield source, target
    for path, length in zip(paths, lengths):
        if length == 0:
            raise TextDataError(f"{path} is empty.")
    if lengths[0] != lengths[1]:
        raise TextDataError(
            f"{paths[0]} has {lengths[0]:,} lines, but {paths[1]} has {lengths[1]:,}."
        )


def check_parallel(raw_dir: Path, src: str, tgt: str, splits: Sequence[str]) -> dict[str, int]:
    """Read every file of the splits to its end; return the number of pairs of each split."""
    return {
        split: sum(1 for _ in progress(read_pairs(raw_dir, split, src, tgt), f"check {split}"))
        for split in splits
    }


@contextmanager
def opened(paths: Iterable[Path]) -> Iterator[list[TextIO]]:
    """Open several text files for writing."""
    with ExitStack() as files:
        yield [files.enter_context(p.open("w", encoding="utf-8", newline="\n")) for p in paths]


def progress(
    items: Iterable[_Item], label: str, total: int | None = None, unit: str = "pairs"
) -> Iterator[_Item]:
    """Yield ``items`` with a labelled bar on stderr, if that is a terminal and they take a while."""
    return iter(tqdm(items, desc=label, total=total, unit=f" {unit}", disable=None, delay=1))


def batched(items: Iterable[_Item], size: int = 10_000) -> Iterator[list[_Item]]:
    """Yield ``items`` in lists of ``size``; the last one may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
