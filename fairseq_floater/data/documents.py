"""Join neighbouring lines of a parallel text into documents, with a separator between sentences."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import (
    TextDataError,
    find_splits,
    opened,
    read_pairs,
    text_file,
)
from fairseq_floater.data.products import PreparedFolder, make_folder


def join_lines(
    raw_dir: Path, out_dir: Path, *, segments: Sequence[int], separator: str, force: bool = False
) -> PreparedFolder:
    """Write the text of ``raw_dir`` to ``out_dir`` as documents, in the form that prepare_text.sh takes.

    Every form of a split has the same sentences, in the same order. The documents of train and valid
    have 1 sentence, then each number in ``segments``, then 1 again, and so on. A test split stays as it
    is, with its groups, and ``<split>_<number>`` has its sentences in documents of that number (the last
    may be shorter).

    Raises:
        TextDataError: the text cannot be used, holds the separator, or has a split of that name already.
    """
    langs = sorted({path.name.split(".")[1] for path in raw_dir.glob("train.*")})
    if len(langs) != 2:
        rule = f"{raw_dir} must hold train.LANG of two languages"
        raise TextDataError(f"{rule}, but holds {', '.join(langs) or 'none'}.")
    splits = find_splits(raw_dir, *langs)

    def build(work: Path) -> dict[str, Any]:
        counts = {}
        for split in splits:
            forms: dict[str, Iterable[int]] = {split: cycle((1, *segments))}
            if split.startswith("test"):
                forms = {split: repeat(1), **{f"{split}_{n}": repeat(n) for n in segments}}
            for name, sizes in forms.items():
                if name != split and name in splits:
                    raise TextDataError(
                        f"{raw_dir} holds the test split {name}, which documents of {split} would replace."
                    )
                paths = [work / f"{name}.{lang}" for lang in langs]
                counts[name] = _write(read_pairs(raw_dir, split, *langs), paths, sizes, separator)
        for path in groups:
            shutil.copyfile(path, work / path.name)
        return {"splits": counts, "warnings": []}

    files = [text_file(raw_dir, split, lang) for split in splits for lang in langs]
    groups = sorted(raw_dir.glob("test*.groups"))
    made_with = {"segments": segments, "separator": separator}
    return make_folder(out_dir, made_with, [*files, *groups], build, force=force)


def _write(
    pairs: Iterator[tuple[str, str]], paths: Sequence[Path], sizes: Iterable[int], separator: str
) -> dict[str, int]:
    counts = {"documents": 0, "sentences": 0}
    with opened(paths) as files:
        for size in sizes:
            if not (document := list(islice(pairs, size))):
                break
            counts["documents"] += 1
            counts["sentences"] += len(document)
            for file, sentences in zip(files, zip(*document)):
                if separator in "\n".join(sentences):
                    raise TextDataError(f"The text holds `{separator}`: choose another separator.")
                file.write(f" {separator} ".join(sentences) + "\n")
    return counts
