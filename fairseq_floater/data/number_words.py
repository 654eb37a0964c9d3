"""Write the built-in corpus: number phrases by num2words, several to a line, in two languages.

    forty-two, seventy-three        ->  zweiundvierzig, dreiundsiebzig

The corpus needs no download, and may have any size and length. Every line has one right translation,
with real reordering: German says the ones before the tens. The same arguments give the same bytes on
every machine that has the same num2words.

A hash of its numbers decides which split a line belongs to, so splits never share a line. Each split
has its own stream of random numbers, so the size of one does not change another.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import num2words

from fairseq_floater.data.parallel_text import TextDataError, progress
from fairseq_floater.data.products import work_folder
from fairseq_floater.errors import UsageError
from fairseq_floater.files import file_hash, write_whole
from fairseq_floater.records import read_json, write_json

T = TypeVar("T")
LANGUAGES = ("de", "en", "fr")
MANIFEST = "numbers.json"
MAX_NUMBER = 999_999
SEPARATOR = ", "
# Which sixteenths of all lines belong to which split.
SHARES = {
    "train": range(10),
    "valid": range(10, 12),
    "test": range(12, 14),
    "test_long": range(14, 16),
}
# After this many refused draws in a row, a split has no lines left.
MAX_REFUSED_DRAWS = 20_000


@dataclass(frozen=True)
class Parameters:
    """The parameters of a corpus; raises UsageError if they are impossible.

    Attributes:
        train, valid, test, test_long: lines; 0 leaves a test split out.
        numbers_per_line: the fewest and the most numbers on a line; all counts are equally likely.
        max_number: the largest number. First the number of digits is drawn, then the number, so that
            short numbers are as frequent as long ones.
    """

    source_language: str = "en"
    target_language: str = "de"
    train: int = 12_000
    valid: int = 500
    test: int = 500
    test_long: int = 500
    numbers_per_line: tuple[int, int] = (1, 4)
    long_numbers_per_line: tuple[int, int] = (6, 10)
    max_number: int = 9_999
    seed: int = 1

    def __post_init__(self) -> None:
        among = f"one of {', '.join(LANGUAGES)}"
        for name in ("source_language", "target_language"):
            self._check(name, getattr(self, name) in LANGUAGES, among)
        if self.source_language == self.target_language:
            raise UsageError(
                f"The two languages must differ, but both are {self.source_language!r}."
            )
        for name, least in (("train", 1), ("valid", 1), ("test", 0), ("test_long", 0)):
            self._check(name, getattr(self, name) >= least, f"at least {least}")
        for name in ("numbers_per_line", "long_numbers_per_line"):
            low, high = getattr(self, name)
            self._check(name, 1 <= low <= high, "two numbers A B with 1 <= A <= B")
        self._check("max_number", 0 <= self.max_number <= MAX_NUMBER, f"from 0 to {MAX_NUMBER}")

    def _check(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            value = getattr(self, name)
            text = "{} {}".format(*value) if name.endswith("per_line") else repr(value)
            raise UsageError(f"`{name}` must be {rule}, but is {text} instead.")


@dataclass(frozen=True)
class NumbersSummary:
    """Report the corpus in ``out_dir``; ``files`` holds each file's lines, bytes and sha256."""

    out_dir: str
    skipped: bool
    parameters: dict[str, Any]
    files: dict[str, dict[str, Any]]

    def format_text(self) -> str:
        lines = [f"{'file':<16}{'lines':>10}{'bytes':>14}  sha256"]
        for name, f in self.files.items():
            lines.append(f"{name:<16}{f['lines']:>10}{f['bytes']:>14}  {f['sha256'][:16]}")
        state = "is complete already and was left as it is" if self.skipped else "is written"
        return "\n".join([*lines, f"{self.out_dir} {state}."])


def write_numbers(
    out_dir: str | Path, *, overwrite: bool = False, **parameters: Any
) -> NumbersSummary:
    """Write ``<split>.<language>`` for train, valid, test and test_long, and a manifest.

    Args:
        out_dir: other files in it are left alone.
        parameters: those of :class:`Parameters` that differ from its defaults.

    Raises:
        UsageError: the parameters are impossible.
        TextDataError: files with other content are in the way.
    """
    out_dir, corpus = Path(out_dir), Parameters(**parameters)
    wanted = json.loads(json.dumps(asdict(corpus)))  # JSON has lists for tuples
    manifest = out_dir / MANIFEST
    old = read_json(manifest, dict) if manifest.is_file() else {}
    known = {out_dir / name: facts["sha256"] for name, facts in old.get("files", {}).items()}
    if old.get("parameters") == wanted and all(
        path.is_file() and file_hash(path) == sha256 for path, sha256 in known.items()
    ):
        return NumbersSummary(str(out_dir), True, wanted, old["files"])
    files = _write_files(out_dir, corpus, old.get("files", {}), overwrite)
    content = {
        "about": "Number phrases by num2words, written by `floater numbers`.",
        "parameters": wanted,
        "num2words": version("num2words"),
        "files": files,
    }
    write_json(manifest, content)
    return NumbersSummary(str(out_dir), False, wanted, files)


def _write_files(
    out_dir: Path, corpus: Parameters, old: Iterable[str], overwrite: bool
) -> dict[str, dict[str, Any]]:
    """Write the files; ``overwrite`` allows it to replace those in ``old``, which floater made."""
    languages = (corpus.source_language, corpus.target_language)
    parts = {f"{split}.{lang}": (split, lang) for split in SHARES for lang in languages}
    files: dict[str, dict[str, Any]] = {}
    unfinished = out_dir / ".numbers.tmp"
    killed = unfinished / MANIFEST  # the names of a run that was killed while it replaced files
    ours = {*old, *(read_json(killed, [str]) if killed.is_file() else ())}
    with work_folder(unfinished) as work:
        for name, (split, language) in parts.items():
            if size := getattr(corpus, split):
                path = work / name
                write_whole(path, partial(_write_side, split, language, corpus))
                facts = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
                files[name] = {"lines": size, **facts}
        for name in parts:
            path = out_dir / name
            same = path.is_file() and name in files and file_hash(path) == files[name]["sha256"]
            if path.exists() and not (same or (overwrite and name in ours)):
                hint = "choose another folder" + " or add --force" * (name in ours)
                raise TextDataError(f"{path} has other content; {hint}.")
        write_json(work / MANIFEST, sorted({*ours, *files}))
        (out_dir / MANIFEST).unlink(missing_ok=True)
        # Files of another language would no longer match the new ones.
        for name in {*parts, *(ours if overwrite else ())}:
            if name in files:
                (work / name).replace(out_dir / name)
            else:
                (out_dir / name).unlink(missing_ok=True)
    return files


def _write_side(split: str, language: str, corpus: Parameters, path: Path) -> None:
    size = getattr(corpus, split)
    span = corpus.long_numbers_per_line if split == "test_long" else corpus.numbers_per_line
    lines = draw_lines(split, size, span, max_number=corpus.max_number, seed=corpus.seed)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for numbers in progress(lines, f"{split}.{language}", size):
            file.write(SEPARATOR.join(phrase(n, language) for n in numbers) + "\n")


def draw_lines(
    split: str, size: int, span: tuple[int, int], *, max_number: int, seed: int
) -> Iterator[tuple[int, ...]]:
    """Draw ``size`` distinct lines of numbers that belong to ``split``.

    Args:
        span: the fewest and the most numbers on a line.
    """
    rng = stream(f"stream {seed} {split}")
    digits = len(str(max_number))

    def draw() -> tuple[tuple[int, ...], str]:
        count = span[0] + int(rng.random() * (span[1] - span[0] + 1))
        numbers = tuple(_draw_number(rng, digits, max_number) for _ in range(count))
        return numbers, f"line {seed} {numbers}"

    refusal = (
        f"`{split}` must be smaller, but is {size}: after {{}} lines of {span[0]} to {span[1]} "
        f"numbers up to {max_number} no new one was found; raise the largest number or the numbers "
        "per line."
    )
    return each_once(draw, size, SHARES[split], refusal)


def each_once(
    draw: Callable[[], tuple[T, str]],
    size: int,
    share: range,
    refusal: str,
    *,
    repeats: bool = False,
) -> Iterator[T]:
    """Draw ``size`` items of a split.

    Args:
        draw: returns an item, and the text that identifies it and is hashed.
        size: number of items; eight bytes of each one's hash are kept to recognise it.
        share: the sixteenths of all hashes that belong to the split.
        refusal: the error message if too few items are left, with ``{}`` for the number drawn.
        repeats: whether an item may be drawn again.
    """
    drawn: set[int] = set()
    count = refused = 0
    while count < size:
        item, text = draw()
        digest = _digest(text)
        key = int.from_bytes(digest[1:], "big")
        if digest[0] % 16 in share and (repeats or key not in drawn):
            drawn.add(key)
            count += 1
            refused = 0
            yield item
            continue
        refused += 1
        if refused == MAX_REFUSED_DRAWS:
            raise TextDataError(refusal.format(count))


@lru_cache(maxsize=1 << 16)
def phrase(number: int, language: str) -> str:
    """Return a number in words.

    num2words writes "one thousand, one hundred" in English; the comma is left out, because between
    numbers it would make 1,100 and the two numbers 1,000 and 100 the same text.
    """
    return str(num2words.num2words(number, lang=language)).replace(",", "")


def _draw_number(rng: random.Random, digits: int, max_number: int) -> int:
    length = 1 + int(rng.random() * digits)
    low = 0 if length == 1 else 10 ** (length - 1)
    high = min(10**length - 1, max_number)
    return low + int(rng.random() * (high - low + 1))


def stream(name: str) -> random.Random:
    """Return a generator of pseudo-random numbers, seeded by ``name``.

    Only its method ``random`` is used: Python promises to keep its values from version to version, but
    not those of other methods.
    """
    return random.Random(int.from_bytes(_digest(name), "big"))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=9).digest()
