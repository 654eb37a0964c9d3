"""Assemble raw parallel text from WMT14's archives: corpus/{train,valid,test}.{en,de}.

Nothing is unpacked to disk: members are read by their exact names as streams, so no path in an archive
becomes a path on disk. The two languages are read one after the other. Their numbers of lines must
equal each other and, for the published archives, the published counts.
"""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import LINE_BREAKS, TextDataError, opened
from fairseq_floater.data.products import work_folder
from fairseq_floater.data.wmt14.sources import Corpus, Recipe
from fairseq_floater.errors import say
from fairseq_floater.files import put_folder
from fairseq_floater.records import write_json

COUNTS = "counts.json"
# What reading a broken archive raises; a truncated gzip header raises TypeError.
_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError, TypeError)
_SEGMENT = re.compile(rb"<seg\s[^>]*>\s*(.*?)\s*</seg>", re.IGNORECASE)
# NUL would end a line for C programs; the others end one for some tool.
_CLEAN = str.maketrans({**dict.fromkeys(LINE_BREAKS, " "), "\0": None})


def member_lines(archive: Path, member: str) -> Iterator[bytes]:
    """Yield the lines of a file in a tar archive, without line ends; decompress a ``.gz`` member."""
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                if entry.name.removeprefix("./") == member and entry.isfile():
                    file = tar.extractfile(entry)
                    assert file is not None  # it is a regular file
                    stream = gzip.GzipFile(fileobj=file) if member.endswith(".gz") else file
                    for line in stream:
                        yield line.rstrip(b"\r\n")
                    return
    except _BROKEN as error:
        raise TextDataError(
            f"{archive} is not a valid archive: {str(error).rstrip('.')}; remove it and its .sha256, "
            "and run again."
        ) from None
    raise TextDataError(f"{archive} holds no file {member}.")


def _segments(archives: Path, test: Corpus, lang: str) -> Iterator[bytes]:
    """Yield the sentences of an SGML file; leave entities as they are, as sacreBLEU does."""
    member = test.member.format(role="src" if lang == "en" else "ref", lang=lang)
    for line in member_lines(archives / test.archive.name, member):
        if match := _SEGMENT.search(line):
            yield match[1]


def assemble(
    recipe: Recipe, archives: Path, folder: Path, *, valid: str = "held-out", check: bool = True
) -> None:
    """Write the raw text of a language pair and its counts into ``folder``, whole or not at all.

    Args:
        valid: ``held-out`` (every n-th line of the training text) or the name of a test set.
        check: compare with the published counts; False for a rehearsal on other text.

    Raises:
        TextDataError: a file is missing, the sides differ in length, or the published counts differ.
    """
    with work_folder(folder.with_name(f".{folder.name}.tmp")) as work:
        source, target = (
            _assemble_side(recipe, archives, work, lang, valid) for lang in ("en", recipe.target)
        )
        _check_lines(recipe, source["lines"], target["lines"], check)
        repaired = {"en": source["repaired"], recipe.target: target["repaired"]}
        write_json(work / COUNTS, {**source, "repaired": repaired})
        put_folder(work, folder)


def _check_lines(
    recipe: Recipe, source: dict[str, int], target: dict[str, int], as_published: bool
) -> None:
    for name, count in source.items():
        if target[name] != count:
            raise TextDataError(
                f"{name} has {count:,} lines in en, but {target[name]:,} in {recipe.target}."
            )
        if as_published and count != recipe.published_lines[name]:
            raise TextDataError(
                f"{name} must have {recipe.published_lines[name]:,} lines as published, but has "
                f"{count:,}; is its archive the published one?"
            )


def _assemble_side(
    recipe: Recipe, archives: Path, folder: Path, lang: str, valid: str
) -> dict[str, Any]:
    sets = (recipe.test,) if valid == "held-out" else (recipe.test, recipe.valid)
    lines = {part.name: 0 for part in (*recipe.corpora, *sets)}
    written = dict.fromkeys(("train", "valid", "test"), 0)
    repaired = 0
    with opened(folder / f"{split}.{lang}" for split in written) as sinks:
        files = dict(zip(written, sinks))
        for name, split, line in _all_lines(recipe, archives, lang, valid):
            if not lines[name]:
                say(f"Reading {name}.{lang}.")
            lines[name] += 1
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError:
                text = line.decode("utf-8", errors="replace")
                repaired += 1
            files[split].write(text.translate(_CLEAN) + "\n")
            written[split] += 1
    return {"lines": lines, "splits": written, "repaired": repaired}


def _all_lines(
    recipe: Recipe, archives: Path, lang: str, valid: str
) -> Iterator[tuple[str, str, bytes]]:
    """Yield every line of a language as (name of its corpus, split, line)."""
    every = recipe.held_out_every if valid == "held-out" else 0
    position = 0
    for corpus in recipe.corpora:
        for line in member_lines(archives / corpus.archive.name, corpus.member.format(lang=lang)):
            position += 1
            held_out = every and position % every == 0
            yield corpus.name, "valid" if held_out else "train", line
    sets = {"test": recipe.test} | ({} if every else {"valid": recipe.valid})
    for split, test in sets.items():
        for line in _segments(archives, test, lang):
            yield test.name, split, line
