"""Write a task as parallel text of whole words: ``train.src``, ``train.tgt`` and so on.

Examples in ``test`` are longer than those in train; examples in ``test_short`` are not. ``test.groups``
has the length of each line of ``test``, to score by length. No source of valid or a test set is in train.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.data.number_words import each_once, stream
from fairseq_floater.data.parallel_text import TextDataError, opened, progress
from fairseq_floater.data.products import PreparedFolder, make_folder
from fairseq_floater.data.scan import fetch_scan, read_scan
from fairseq_floater.data.task_generators import TASKS, Example
from fairseq_floater.data.understanding.quiz_lists import Draws
from fairseq_floater.files import write_text

LANGUAGES = ("src", "tgt")
# Which sixteenths of all sources belong to which split. Sources of `test` are longer than all of them.
_SHARES = {"train": range(12), "valid": range(12, 14), "test_short": range(14, 16)}
# Up to this many lengths, each length is a group; more lengths are merged into this many spans.
_MOST_LENGTHS, _SPANS = 12, 8


def write_scan(
    out_dir: Path, *, cutoff: int, file: Path | None, valid: int, seed: int, force: bool
) -> PreparedFolder:
    """Write SCAN's split by length: pairs of more than ``cutoff`` actions are for the test.

    Args:
        file: tasks.txt, plain or gzipped; None: it is fetched into the folder ``<out_dir>.archives``.
        valid: size of valid, and of test_short, drawn with ``seed`` from pairs of up to ``cutoff`` actions.

    Raises:
        TextDataError: the file cannot be fetched or is another one, or the cutoff leaves a split empty.
    """

    def build(work: Path) -> dict[str, Any]:
        pairs = read_scan(file or fetch_scan(out_dir.with_name(f"{out_dir.name}.archives")))
        lengths = [pair.length for pair in pairs]
        short = [number for number, length in enumerate(lengths) if length <= cutoff]
        if not 0 < len(short) < len(pairs):
            raise TextDataError(
                f"`--cutoff` must leave pairs for training and for the test, but is {cutoff}: SCAN has "
                f"{min(lengths)} to {max(lengths)} actions."
            )
        if 4 * valid > len(short):
            raise TextDataError(
                f"`--valid` must be at most {len(short) // 4}, a quarter of the pairs of up to {cutoff} "
                f"actions, but is {valid}."
            )
        random = stream(f"scan {seed}")
        drawn = sorted(short, key=[random.random() for _ in pairs].__getitem__)[: 2 * valid]
        members = {"valid": {*drawn[:valid]}, "test_short": {*drawn[valid:]}}
        members["train"] = {*short} - {*drawn}
        members["test"] = {*range(len(pairs))} - {*short}
        return _write_all(
            work, {split: [pairs[i] for i in sorted(ids)] for split, ids in members.items()}
        )

    parameters = {"task": "scan", "cutoff": cutoff, "valid": valid, "seed": seed}
    return make_folder(out_dir, parameters, (), build, force=force)


def write_generated(
    out_dir: Path, *, task: str, seed: int, force: bool, **sizes: int
) -> PreparedFolder:
    """Write a task of :data:`~fairseq_floater.data.task_generators.TASKS`.

    Args:
        sizes: number of examples in train, in valid, and in each test set (``test``).

    Raises:
        TextDataError: the task has fewer examples.
    """

    def examples(split: str) -> Iterable[Example]:
        kind = "test" if split == "test_short" else split
        return progress(_drawn(task, split, sizes[kind], seed), split, sizes[kind])

    parameters = {"task": task, "seed": seed, **sizes}
    splits = (*_SHARES, "test")
    return make_folder(
        out_dir,
        parameters,
        (),
        lambda work: _write_all(work, {split: examples(split) for split in splits}),
        force=force,
    )


def _drawn(task: str, split: str, size: int, seed: int) -> Iterator[Example]:
    draws, generator = Draws(seed, task, split), TASKS[task]
    span = generator.tested if split == "test" else generator.trained

    def draw() -> tuple[Example, str]:
        example = generator.draw(draws, span)
        return example, " ".join(example.source)

    refusal = f"`{split}` must be smaller, but is {size}: after {{}} examples no new one was found."
    share = _SHARES.get(split, range(16))
    # As in the papers, training text repeats some of the short examples.
    return each_once(draw, size, share, refusal, repeats=split == "train")


def _write_all(work: Path, drawn: dict[str, Iterable[Example]]) -> dict[str, Any]:
    counts = {}
    for split, examples in drawn.items():
        lengths = []
        with opened(work / f"{split}.{lang}" for lang in LANGUAGES) as (sources, targets):
            for source, target, length in examples:
                sources.write(" ".join(source) + "\n")
                targets.write(" ".join(target) + "\n")
                lengths.append(length)
        sizes = len(lengths), min(lengths), max(lengths)
        counts[split] = dict(zip(("pairs", "shortest", "longest"), sizes))
        if split == "test":
            name = partial(_group, spans=sorted({*lengths}))
            write_text(work / "test.groups", "".join(f"{name(length)}\n" for length in lengths))
    return {"splits": counts, "warnings": []}


def _group(length: int, spans: list[int]) -> str:
    """Return the name of a length's group; ``spans`` are all lengths, sorted."""
    if len(spans) <= _MOST_LENGTHS:
        return str(length)
    first, last = spans[0], spans[-1]
    width = -(-(last - first + 1) // _SPANS)
    start = first + (length - first) // width * width
    return f"{start}-{min(start + width - 1, last)}"
