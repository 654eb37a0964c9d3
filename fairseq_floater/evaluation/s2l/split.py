"""Make short-to-long data from parallel text: short pairs train, long pairs test.

Lengths are source lengths in the model's own tokens without the end symbol. The subword model that
defines them is learned on short training pairs only. That is a circle (who is short depends on the
model), cut in two rounds: a provisional model is learned on the pairs of fewer *words* than the
threshold, the final one on the pairs that are short for the provisional one. Pairs that the final
model has seen and yet finds long are left out of everything.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_floater.data.parallel_text import (
    TextDataError,
    batched,
    check_parallel,
    find_splits,
    progress,
    read_lines,
    read_pairs,
    text_file,
)
from fairseq_floater.data.sentencepiece_subwords import BATCH, Segmenter, train_subword
from fairseq_floater.evaluation.hypotheses import join_pieces
from fairseq_floater.evaluation.s2l.bins import Bins, S2LError
from fairseq_floater.evaluation.s2l.held_out import SHORT_TEST, TEST, HeldOut, Pair
from fairseq_floater.evaluation.s2l.repeats import first_occurrences, overlap
from fairseq_floater.evaluation.s2l.split_options import SplitOptions, check_form, check_places
from fairseq_floater.evaluation.s2l.split_report import SplitReport
from fairseq_floater.files import file_hash, naming, put_folder, write_text


def split(
    raw_dir: Path, out_dir: Path, options: SplitOptions, *, force: bool = False, threads: int = 1
) -> SplitReport:
    """Make the short-to-long data of ``raw_dir`` in ``out_dir``; whole or not at all.

    Args:
        raw_dir: holds train, valid and any test* files of both languages, as prepare_text.sh takes
            them.
        out_dir: gets train, valid, test (the long pairs of all files) and test_short (the short pairs
            of the test files) in the same form, the origin of each test pair in test.tsv, the subword
            model and split.json.
        options: what decides the split.
        force: replace ``out_dir``.
        threads: of sentencepiece.

    Raises:
        UsageError: the inputs lie in ``out_dir``.
        S2LError: no pair is long enough, a bin is empty, or the text is in another form.
        TextDataError: a file is missing, damaged, or not parallel to its other side.
    """
    out_dir = out_dir.resolve()
    check_places(raw_dir, out_dir, options.spm_model)
    langs = (options.source, options.target)
    splits = find_splits(raw_dir, *langs)
    files = [text_file(raw_dir, s, lang) for s in splits for lang in langs]
    settings = asdict(options) | {"spm_model": options.spm_model and file_hash(options.spm_model)}
    made_from = {"options": settings, "inputs": {f.name: file_hash(f) for f in files}}
    made_from = json.loads(json.dumps(made_from))  # as it is read back
    if _is_there(out_dir, made_from, force):
        return SplitReport.read(out_dir)
    check_form(files, options.encoded)
    work = out_dir.with_name(f".{out_dir.name}.s2l.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        with naming(out_dir):
            report = _Splitter(raw_dir, work, splits, options, threads).run(made_from)
            put_folder(work, out_dir)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return report


class _Splitter:
    """Runs :func:`split` into the folder ``work``."""

    def __init__(
        self, raw_dir: Path, work: Path, splits: list[str], options: SplitOptions, threads: int
    ):
        self.raw_dir, self.work, self.options, self.threads = raw_dir, work, options, threads
        self.langs = (options.source, options.target)
        # The first of equal pairs stays: read held-out text first, so that it is never trained on.
        self.splits = sorted(splits, key=lambda s: (s == "train", s == "valid", s))
        self.bins = Bins(options.edges)
        self.provisional: Segmenter | None = None
        self.final: Segmenter | None = None

    def run(self, made_from: dict[str, Any]) -> SplitReport:
        lines = check_parallel(self.raw_dir, *self.langs, self.splits)
        if self.options.vocab is not None:
            self._learn(lines["train"])
        elif self.options.spm_model is not None:
            shutil.copyfile(self.options.spm_model, self.work / "spm.model")
            self.final = Segmenter(self.work / "spm.model", self.threads)
        pairs = itertools.chain.from_iterable(self._read(split) for split in self.splits)
        is_first = iter(first_occurrences(progress(pairs, "duplicates", sum(lines.values()))))
        held_out = HeldOut(
            self.work, self.langs, self.bins, self.options.max_per_bin, self.options.seed
        )
        report = SplitReport(
            made_from=made_from, lines=lines, bins=self.bins, tokens_of=self._tokens_of()
        )
        for split in self.splits:
            self._distribute(split, is_first, held_out, report)
        held_out.close()
        report.check_bins(held_out.counts())
        for side, lang in zip(("source", "target"), self.langs):
            report.overlap[side] = self._overlap(lang)
        write_text(
            self.work / "split.json",
            json.dumps(report.to_json_dict(), indent=2, ensure_ascii=False),
        )
        return report

    def _read(self, split: str) -> Iterator[tuple[str, str]]:
        return read_pairs(self.raw_dir, split, *self.langs)

    def _learn(self, lines: int) -> None:
        """Learn subwords in the two rounds of the module's docstring; writes ``spm.model``."""
        threshold = self.bins.threshold

        def short_in_words() -> Iterator[tuple[str, str]]:
            return (pair for pair in self._read("train") if len(pair[0].split()) < threshold)

        def short_in_tokens() -> Iterator[tuple[str, str]]:
            assert self.provisional is not None
            for batch in batched(self._read("train"), BATCH):
                for pair, (source, _) in zip(batch, self.provisional.pieces(batch)):
                    if len(source) < threshold:
                        yield pair

        for name, pairs in (("provisional.model", short_in_words), ("spm.model", short_in_tokens)):
            path = self.work / name
            if not any(True for _ in itertools.islice(pairs(), 1)):
                raise S2LError(
                    f"{self.raw_dir} has no training pair of fewer than {threshold} source tokens."
                )
            _say(f"Learning {self.options.vocab} subwords on short training pairs ({name}).")
            train_subword(
                progress(pairs(), "learn"),
                lines,
                path,
                vocab_size=self.options.vocab or 0,
                character_coverage=self.options.character_coverage,
            )
            model = Segmenter(path, self.threads)
            if name == "spm.model":
                self.final = model
            else:
                self.provisional = model
                path.unlink()

    def _lengths(
        self, segmenter: Segmenter | None, batch: list[tuple[str, str]]
    ) -> list[tuple[int, int]]:
        if segmenter is None:  # the text is in subwords already
            return [(len(source.split()), len(target.split())) for source, target in batch]
        return [(len(source), len(target)) for source, target in segmenter.pieces(batch)]

    def _distribute(
        self, split: str, is_first: Iterator[np.bool_], held_out: HeldOut, report: SplitReport
    ) -> None:
        """Send every pair of a split to train, valid or test, or count the reason for leaving it out.

        Args:
            split: train, valid or a test split.
            is_first: whether the next pair is the first of its kind.
            held_out: takes the test pairs.
            report: counts what goes where.
        """
        kind = "test" if split.startswith("test") else split
        files = [text_file(self.raw_dir, split, lang).name for lang in self.langs]
        outputs = []
        if kind != "test":
            outputs = [
                (self.work / f"{kind}.{lang}").open("w", encoding="utf-8", newline="\n")
                for lang in self.langs
            ]
        line = 0
        for batch in batched(progress(self._read(split), f"split {split}"), BATCH):
            for text, length in zip(batch, self._lengths(self.final, batch)):
                line += 1
                pair = Pair(*text, *length, file=files[0], line=line)
                fault = self._fault(kind, pair) if next(is_first) else "duplicate"
                if fault:
                    report.leave_out(split, fault)
                    continue
                report.see(pair)
                if kind == "test" or length[0] >= self.bins.threshold:
                    held_out.add(pair)
                else:
                    report.keep(kind, pair)
                    for output, side in zip(outputs, text):
                        output.write(side + "\n")
        for output in outputs:
            output.close()
            if not report.kept[kind]["pairs"]:
                raise S2LError(
                    f"{self.raw_dir / files[0]} has no pair of fewer than {self.bins.threshold} "
                    "source tokens."
                )

    def _fault(self, kind: str, pair: Pair) -> str | None:
        """Return the reason for leaving a pair out; None for a pair that is used."""
        # No tokens also means a line of invisible characters alone.
        if not min(pair.source_tokens, pair.target_tokens):
            return "empty"
        if max(pair.source_tokens, pair.target_tokens) > self.options.max_len:
            return "longer than max-len"
        if pair.source_tokens < self.bins.threshold:
            long_target = pair.target_tokens >= self.bins.threshold
            if kind != "test" and self.options.both_sides and long_target:
                return "long target"
        elif kind == "train" and self.provisional is not None:
            (length,) = self._lengths(self.provisional, [(pair.source, pair.target)])
            if length[0] < self.bins.threshold:
                return "seen by the subword model"
        return None

    def _overlap(self, lang: str) -> dict[str, dict[str, float]]:
        """Return the overlap of each test set with the training text."""
        paths = {name: self.work / f"{name}.{lang}" for name in (TEST, SHORT_TEST)}
        return {
            name: overlap(list(self._words(path)), self._words(self.work / f"train.{lang}"))
            for name, path in paths.items()
            if path.exists()
        }

    def _words(self, path: Path) -> Iterator[str]:
        """Yield the lines of a file, in words."""
        for line in read_lines(path):
            yield join_pieces(line, "sentencepiece") if self.options.encoded else line

    def _tokens_of(self) -> str:
        if self.final is None:
            return "the encoded text"
        name = f"spm.model, {len(self.final.model)} pieces"
        return name + (", learned on the short part" if self.options.vocab else ", given")


def _is_there(out_dir: Path, made_from: dict[str, Any], force: bool) -> bool:
    """Tell whether the same split is there already; raise where something else is."""
    if not out_dir.exists() or (out_dir.is_dir() and not any(out_dir.iterdir())):
        return False
    if not (out_dir / "split.json").is_file():
        raise TextDataError(f"{out_dir} holds something else; choose another OUT_DIR.")
    if force:
        return False
    if SplitReport.read(out_dir).made_from == made_from:
        langs = [made_from["options"][side] for side in ("source", "target")]
        files = [f"{name}.{lang}" for name in ("train", "valid", TEST) for lang in langs]
        if not all((out_dir / name).is_file() for name in [*files, f"{TEST}.tsv"]):
            return False
        _say(f"{out_dir} is there already: skipped.")
        return True
    raise TextDataError(
        f"{out_dir} was made of other text or with other options; choose another OUT_DIR or add "
        "--force."
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr)
