"""Write the built-in corpus: number phrases by num2words, several to a line, in two languages.

    forty-two, seventy-three        ->  zweiundvierzig, dreiundsiebzig

It needs no download, has one right translation for every line, real reordering (German says the ones
before the tens), and any size and length. The same arguments give the same bytes on every machine
that has the same num2words.

Every line belongs to one split by a hash of its numbers, so that splits never share a line, and each
split draws from its own stream, so that the size of one does not change another.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import num2words
from tqdm import tqdm

from fairseq_floater.errors import UserError
from fairseq_floater.files import file_hash, naming, write_text
from fairseq_floater.records import read_json

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
# After so many refused draws in a row a split has run out of lines.
MAX_REFUSED_DRAWS = 20_000


class CorpusError(UserError):
    """Report a corpus that cannot be made or must not be overwritten, in one sentence for a person."""


@dataclass(frozen=True)
class Parameters:
    """Describe a corpus.

    Attributes:
        source_language, target_language: two of :data:`LANGUAGES`.
        train, valid, test, test_long: lines; 0 leaves a test split out.
        numbers_per_line: the fewest and the most numbers on a line; all counts are equally likely.
        long_numbers_per_line: the same for test_long.
        max_number: the largest number. First the number of digits is drawn, then the number, so that
            short numbers are as frequent as long ones.
        seed: any integer.

    Raises:
        CorpusError: these make no corpus.
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
            raise CorpusError(
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
            found = "{} {}".format(*value) if name.endswith("per_line") else repr(value)
            raise CorpusError(f"`{name}` must be {rule}, but is {found} instead.")

    def to_json_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON gives them back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class NumbersSummary:
    """Report what :func:`write_numbers` left in ``out_dir``."""

    out_dir: Path
    skipped: bool
    parameters: dict[str, Any]
    files: dict[str, dict[str, Any]]
    """For each file its number of lines, its size in bytes and its sha256."""

    def to_json_dict(self) -> dict[str, Any]:
        return {**vars(self), "out_dir": str(self.out_dir)}

    def format_text(self) -> str:
        lines = [f"{'file':<16}{'lines':>10}{'bytes':>14}  sha256"]
        for name, f in self.files.items():
            lines.append(f"{name:<16}{f['lines']:>10}{f['bytes']:>14}  {f['sha256'][:16]}")
        state = "is whole already and was left as it is" if self.skipped else "is written"
        return "\n".join([*lines, f"{self.out_dir} {state}."])


def write_numbers(
    out_dir: str | Path, *, overwrite: bool = False, **parameters: Any
) -> NumbersSummary:
    """Write ``<split>.<language>`` for train, valid, test and test_long, and a manifest.

    Args:
        out_dir: made if it is not there; other files in it are left alone.
        overwrite: replace a corpus of other parameters.
        parameters: those of :class:`Parameters` that differ from its defaults.

    Raises:
        CorpusError: parameters that make no corpus, or other files in the way.
    """
    out_dir, corpus = Path(out_dir), Parameters(**parameters)
    wanted, old = corpus.to_json_dict(), _read_manifest(out_dir)
    if old.get("parameters") == wanted and _is_whole(out_dir, old["files"]):
        return NumbersSummary(out_dir, True, wanted, old["files"])
    files = _write_files(out_dir, corpus, old["files"], overwrite)
    manifest = {
        "about": "Number phrases by num2words, written by `floater numbers`.",
        "parameters": wanted,
        "num2words": version("num2words"),
        "files": files,
    }
    write_text(out_dir / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    return NumbersSummary(out_dir, False, wanted, files)


def _write_files(
    out_dir: Path, corpus: Parameters, old: dict[str, Any], overwrite: bool
) -> dict[str, dict[str, Any]]:
    """Write all splits into a temporary folder, then put them in the place of ``old`` files."""
    temporary = out_dir / ".numbers.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise CorpusError(f"{out_dir} cannot be written: {error.strerror}.") from None
    try:
        files: dict[str, dict[str, Any]] = {}
        for split in SHARES:
            files.update(_write_split(temporary, split, corpus))
        if not overwrite:
            _check_nothing_in_the_way(out_dir, files, old)
        for name in old.keys() - files.keys():
            (out_dir / name).unlink(missing_ok=True)
        (out_dir / MANIFEST).unlink(missing_ok=True)
        for name in files:
            (temporary / name).replace(out_dir / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return files


def draw_lines(
    split: str, size: int, span: tuple[int, int], *, max_number: int, seed: int
) -> Iterator[tuple[int, ...]]:
    """Draw ``size`` distinct lines of numbers that belong to ``split``.

    Only ``Random.random`` is used: Python promises its values from version to version, and not those of
    its other methods.

    Args:
        split: a key of :data:`SHARES`.
        size: how many lines; eight bytes of each are kept to know it again.
        span: the fewest and the most numbers on a line.
        max_number, seed: as in :class:`Parameters`.

    Raises:
        CorpusError: there are not so many lines.
    """
    rng = random.Random(int.from_bytes(_digest(f"stream {seed} {split}"), "big"))
    digits = len(str(max_number))
    drawn: set[int] = set()
    refused = 0
    while len(drawn) < size:
        count = span[0] + int(rng.random() * (span[1] - span[0] + 1))
        numbers = tuple(_draw_number(rng, digits, max_number) for _ in range(count))
        digest = _digest(f"line {seed} {numbers}")
        key = int.from_bytes(digest[1:], "big")
        if digest[0] % 16 in SHARES[split] and key not in drawn:
            drawn.add(key)
            refused = 0
            yield numbers
            continue
        refused += 1
        if refused == MAX_REFUSED_DRAWS:
            raise CorpusError(
                f"`{split}` must be smaller, but is {size}: after {len(drawn)} lines of "
                f"{span[0]} to {span[1]} numbers up to {max_number} no new one was found; raise "
                "the largest number or the numbers per line."
            )


@functools.lru_cache(maxsize=1 << 16)
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


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=9).digest()


def _write_split(folder: Path, split: str, corpus: Parameters) -> dict[str, dict[str, Any]]:
    """Write both sides of a split; return the facts of the files, none if it has no lines."""
    size = getattr(corpus, split)
    if not size:
        return {}
    span = corpus.long_numbers_per_line if split == "test_long" else corpus.numbers_per_line
    lines = draw_lines(split, size, span, max_number=corpus.max_number, seed=corpus.seed)
    languages = (corpus.source_language, corpus.target_language)
    paths = [folder / f"{split}.{language}" for language in languages]
    bar = tqdm(lines, desc=split, total=size, unit=" lines", disable=None, delay=1)
    with (
        naming(folder.parent),
        paths[0].open("w", encoding="utf-8", newline="\n") as source,
        paths[1].open("w", encoding="utf-8", newline="\n") as target,
    ):
        for numbers in bar:
            for file, language in zip((source, target), languages):
                file.write(SEPARATOR.join(phrase(n, language) for n in numbers) + "\n")
        for file in (source, target):
            file.flush()
            os.fsync(file.fileno())
    return {
        path.name: {"lines": size, "bytes": path.stat().st_size, "sha256": file_hash(path)}
        for path in paths
    }


def _check_nothing_in_the_way(
    out_dir: Path, files: dict[str, dict[str, Any]], old: dict[str, Any]
) -> None:
    """Refuse to replace what differs; files equal to what would be written are no obstacle."""
    for name in [*files, *old]:
        path = out_dir / name
        if path.exists() and (name not in files or file_hash(path) != files[name]["sha256"]):
            raise CorpusError(
                f"{path} is there with other content; choose another folder or add --force."
            )


def _read_manifest(out_dir: Path) -> dict[str, Any]:
    """Return the manifest of an earlier call; one without files where there is none."""
    ours = re.compile(rf"({'|'.join(SHARES)})\.({'|'.join(LANGUAGES)})")
    try:
        manifest = dict(read_json(out_dir / MANIFEST))
        # These files may be deleted: a manifest that names others is not ours.
        if all(
            ours.fullmatch(name) and facts["sha256"] for name, facts in manifest["files"].items()
        ):
            return manifest
    except (OSError, ValueError, UserError, LookupError, TypeError, AttributeError):
        pass  # there is none, or it is damaged
    return {"files": {}}


def _is_whole(out_dir: Path, files: dict[str, dict[str, Any]]) -> bool:
    paths = {out_dir / name: facts["sha256"] for name, facts in files.items()}
    return all(path.is_file() and file_hash(path) == known for path, known in paths.items())
