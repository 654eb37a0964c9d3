"""Assemble raw parallel text from WMT14's archives: corpus/{train,valid,test}.{en,de}.

Nothing is unpacked to disk: members are read by their exact names as streams, so no path of an archive
ever becomes a path here. The two languages are read one after the other; their lines are counted and
must agree with each other and, for the published archives, with the published counts.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from fairseq_floater.data.parallel_text import LINE_BREAKS, LONGEST_LINE, TextDataError
from fairseq_floater.data.wmt14.sources import Recipe, TestSet
from fairseq_floater.files import put_folder, write_text

COUNTS = "counts.json"
_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)
_SEGMENT = re.compile(rb"<seg\s[^>]*>\s*(.*?)\s*</seg>", re.IGNORECASE)
# NUL would end a line for C programs; the others end one for some tool.
_CLEAN = str.maketrans({**dict.fromkeys(LINE_BREAKS, " "), "\0": None})


def member_lines(archive: Path, member: str) -> Iterator[bytes]:
    """Yield the lines of a file in a tar archive, without their ends; decompress a ``.gz`` member.

    Raises:
        TextDataError: the archive is broken or has no such file.
    """
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                if entry.name.removeprefix("./") == member and entry.isfile():
                    file = tar.extractfile(entry)
                    assert file is not None  # it is a regular file
                    stream = gzip.GzipFile(fileobj=file) if member.endswith(".gz") else file
                    yield from _lines(stream, f"{archive}: {member}")
                    return
    # Where a gzip header breaks off, tarfile raises a TypeError.
    except (*_BROKEN, TypeError) as error:
        raise TextDataError(
            f"{archive} is no whole archive: {str(error).rstrip('.')}; remove it and its .sha256, and "
            "run again."
        ) from None
    raise TextDataError(f"{archive} holds no file {member}.")


def _lines(file: IO[bytes] | gzip.GzipFile, name: str) -> Iterator[bytes]:
    with file as stream:
        # Without a newline, or from a few bytes of gzip, a line could fill the memory.
        while line := stream.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise TextDataError(f"{name} holds a line of more than {LONGEST_LINE:,} bytes.")
            yield line.rstrip(b"\r\n")


class _Side:
    """Write one language's text of every split; count its lines and the repaired ones."""

    def __init__(self, folder: Path, lang: str, stack: ExitStack) -> None:
        self.files = {
            split: stack.enter_context(
                (folder / f"{split}.{lang}").open("w", encoding="utf-8", newline="\n")
            )
            for split in ("train", "valid", "test")
        }
        self.written = dict.fromkeys(self.files, 0)
        self.repaired = 0

    def write(self, split: str, line: bytes) -> None:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", errors="replace")
            self.repaired += 1
        self.files[split].write(text.translate(_CLEAN) + "\n")
        self.written[split] += 1


def assemble(
    recipe: Recipe,
    archives: Path,
    folder: Path,
    *,
    valid: str = "held-out",
    check: bool = True,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Write the raw text of a language pair into ``folder``, whole or not at all.

    Args:
        recipe: the recipe of the language pair.
        archives: the folder of its archives, verified.
        folder: the folder to write.
        valid: ``held-out`` (every so many lines of the training text) or the name of a test set.
        check: compare with the published counts; False for a rehearsal on other text.
        say: called with each line of progress.

    Returns:
        The number of lines of each corpus and of each split, and of those that were no valid UTF-8.

    Raises:
        TextDataError: a file is missing, sides of unequal length, other counts than the published.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    found: dict[str, Any] = {}
    for lang in ("en", recipe.target):
        with ExitStack() as stack:
            side = _Side(temporary, lang, stack)
            found[lang] = _assemble_side(recipe, archives, lang, side, valid, say)
    source, target = found.values()
    for name, count in source["lines"].items():
        if target["lines"][name] != count:
            raise TextDataError(
                f"{name} has {count:,} English lines, but {target['lines'][name]:,} of "
                f"{recipe.target}."
            )
    if check:
        _check_counts(recipe, source["lines"])
    counts = {**source, "repaired": {lang: side["repaired"] for lang, side in found.items()}}
    write_text(temporary / COUNTS, json.dumps(counts, indent=2) + "\n")
    put_folder(temporary, folder)
    return counts


def _assemble_side(
    recipe: Recipe,
    archives: Path,
    lang: str,
    side: _Side,
    valid: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    lines: dict[str, int] = {}
    position = 0
    every = recipe.held_out_every if valid == "held-out" else None
    for corpus in recipe.corpora:
        before = position
        for line in member_lines(archives / corpus.archive.name, corpus.member.format(lang=lang)):
            position += 1
            held_out = every is not None and position % every == 0
            side.write("valid" if held_out else "train", line)
        lines[corpus.name] = position - before
        say(f"{lang}: {corpus.name}: {lines[corpus.name]:,} lines")
    sets = {"test": recipe.test, **({} if every else {"valid": recipe.valid})}
    for split, test in sets.items():
        role = test.roles[lang != "en"]
        for line in _segments(test, archives, role, lang):
            side.write(split, line)
        lines[test.name] = side.written[split]
        say(f"{lang}: {test.name}: {lines[test.name]:,} lines")
    return {"lines": lines, "splits": side.written, "repaired": side.repaired}


def _segments(test: TestSet, archives: Path, role: str, lang: str) -> Iterator[bytes]:
    """Yield the sentences of an SGML file; leave entities as they are, as sacreBLEU does."""
    member = test.member.format(role=role, lang=lang)
    for line in member_lines(archives / test.archive.name, member):
        if match := _SEGMENT.search(line):
            yield match[1]


def _check_counts(recipe: Recipe, lines: dict[str, int]) -> None:
    published = recipe.published_lines
    for name, count in lines.items():
        if count != published[name]:
            raise TextDataError(
                f"{name} must have {published[name]:,} lines as published, but has {count:,}; "
                "is its archive the published one?"
            )
