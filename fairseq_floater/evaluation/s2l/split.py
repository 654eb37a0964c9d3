"""Make short-to-long data from parallel text: short pairs for training, long pairs for the test.

Lengths are source lengths in the model's own tokens without the end symbol. The subword model is
learned on short training pairs only, but which pairs are short depends on that model. So there are
two rounds. A provisional model is learned on the pairs of fewer *words* than the threshold, and the
final model on the pairs that are short under the provisional one. Pairs that the final model was
learned on but that are long under it are left out of everything.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_floater.data.parallel_text import (
    TextDataError,
    batched,
    check_parallel,
    find_splits,
    opened,
    progress,
    read_lines,
    read_pairs,
    text_file,
)
from fairseq_floater.data.pieces import check_pieces, join_pieces
from fairseq_floater.data.products import Origin, files_in, is_made, refuse_foreign, work_folder
from fairseq_floater.data.sentencepiece_subwords import SUBWORD_PAIRS, Segmenter, train_subword
from fairseq_floater.errors import UsageError, say
from fairseq_floater.evaluation.s2l.options import Bins, SplitOptions
from fairseq_floater.evaluation.s2l.repeats import first_occurrences, overlap
from fairseq_floater.evaluation.s2l.split_report import SHORT_TEST, TEST, HeldOut, Pair, SplitReport
from fairseq_floater.files import file_hash, naming, put_folder
from fairseq_floater.records import write_json

_Pairs = Iterator[tuple[str, str]]


def split(
    raw_dir: Path, out_dir: Path, options: SplitOptions, *, force: bool = False, threads: int = 1
) -> SplitReport:
    """Write the short-to-long data of ``raw_dir`` to ``out_dir``, complete or not at all.

    Args:
        raw_dir: holds train, valid and any test* files of both languages, in the form that
            prepare_text.sh takes.
        out_dir: gets train, valid, test (the long pairs of all files) and test_short (the short pairs
            of the test files) in the same form, the origin of each test pair in test.tsv, the subword
            model and split.json.

    Raises:
        UsageError: the inputs lie in ``out_dir``.
        TextDataError: a file is missing, damaged, not parallel to its other side or in another form, no
            pair is long enough, or a bin is empty.
    """
    out_dir = out_dir.resolve()
    _check_paths(raw_dir, out_dir, options.spm_model)
    langs = (options.source, options.target)
    splits = find_splits(raw_dir, *langs)
    files = [text_file(raw_dir, s, lang) for s in splits for lang in langs]
    settings = asdict(options) | {"spm_model": options.spm_model and file_hash(options.spm_model)}
    settings = json.loads(json.dumps(settings))  # as they are read back
    new = Origin(settings, {path.name: file_hash(path) for path in files})
    old = SplitReport.read(out_dir) if (out_dir / "split.json").is_file() else None
    old_origin = Origin(old.made_from["options"], old.made_from["inputs"]) if old else None
    made = old.made_from.get("files") if old else None
    is_same = is_made(out_dir, old_origin, new, files=made or (), force=force, option="OUT_DIR")
    if old and is_same and not force:
        say(f"{out_dir} exists already: skipped.")
        return old
    refuse_foreign(out_dir, made)
    check_pieces(files, options.encoded)
    with work_folder(out_dir.with_name(f".{out_dir.name}.tmp")) as work, naming(out_dir):
        made_from = {"options": new.parameters, "inputs": new.inputs}
        report = _Splitter(raw_dir, work, splits, options, threads).run(made_from)
        put_folder(work, out_dir)
    return report


class _Splitter:
    def __init__(
        self, raw_dir: Path, work: Path, splits: list[str], options: SplitOptions, threads: int
    ):
        self.raw_dir, self.work, self.options, self.threads = raw_dir, work, options, threads
        self.langs = (options.source, options.target)
        # The first of equal pairs is kept. Read held-out text first, so that it is never trained on.
        self.splits = sorted(splits, key=lambda s: (s == "train", s == "valid", s))
        self.bins = Bins(options.edges)
        self.provisional: Segmenter | None = None
        self.final: Segmenter | None = None

    def run(self, made_from: dict[str, Any]) -> SplitReport:
        options = self.options
        lines = check_parallel(self.raw_dir, *self.langs, self.splits)
        tokens_of = "the encoded text" if options.encoded else "the text, its words"
        if options.vocab is not None:
            name = "provisional.model"
            self.provisional = self._learn(name, self._short_in_words, lines["train"])
            (self.work / name).unlink()
            short = partial(self._short_in_tokens, self.provisional)
            self.final = self._learn("spm.model", short, lines["train"])
            tokens_of = f"spm.model, {len(self.final.model)} pieces, learned on the short part"
        elif options.spm_model is not None:
            self.final = Segmenter(options.spm_model, self.threads)
            shutil.copyfile(options.spm_model, self.work / "spm.model")
            tokens_of = f"spm.model, {len(self.final.model)} pieces, given"
        pairs = itertools.chain.from_iterable(self._read(split) for split in self.splits)
        is_first = iter(first_occurrences(progress(pairs, "duplicates", sum(lines.values()))))
        held_out = HeldOut(self.bins, options.max_per_bin, options.seed)
        report = SplitReport(made_from, lines, self.bins, tokens_of)
        for split in self.splits:
            if not split.startswith("test"):
                held_out.begin_kind()
            self._distribute(split, is_first, held_out, report)
        report.held_out = held_out.counts()
        report.check_bins()
        held_out.write(self.work, self.langs)
        for side, lang in zip(("source", "target"), self.langs):
            report.overlap[side] = self._overlap(lang)
        report.made_from["files"] = [*files_in(self.work), "split.json"]
        write_json(self.work / "split.json", report.to_json_dict())
        return report

    def _read(self, split: str) -> _Pairs:
        return read_pairs(self.raw_dir, split, *self.langs)

    def _learn(self, name: str, short: Callable[[], _Pairs], lines: int) -> Segmenter:
        if lines > SUBWORD_PAIRS:  # a sample may be learned from, so count them
            lines = sum(1 for _ in progress(short(), "count"))
        pairs = short()
        first = list(itertools.islice(pairs, 1))
        if not first:
            raise TextDataError(
                f"{self.raw_dir} has no training pair of fewer than {self.bins.threshold} source "
                "tokens."
            )
        say(f"Learning {self.options.vocab} subwords on short training pairs ({name}).")
        train_subword(
            progress(itertools.chain(first, pairs), "learn"),
            lines,
            self.work / name,
            vocab_size=self.options.vocab or 0,
            character_coverage=self.options.character_coverage,
            separator=self.options.separator,
            normalization=self.options.normalization,
        )
        return Segmenter(self.work / name, self.threads)

    def _short_in_words(self) -> _Pairs:
        pairs = self._read("train")
        return (pair for pair in pairs if len(pair[0].split()) < self.bins.threshold)

    def _short_in_tokens(self, segmenter: Segmenter) -> _Pairs:
        for batch in batched(self._read("train")):
            for pair, (source, _) in zip(batch, _lengths(segmenter, batch)):
                if source < self.bins.threshold:
                    yield pair

    def _distribute(
        self, split: str, is_first: Iterator[np.bool_], held_out: HeldOut, report: SplitReport
    ) -> None:
        """Put every pair of a split into train, valid or test, or count the reason for leaving it out.

        ``is_first`` yields for each pair whether no equal pair came before.
        """
        kind = "test" if split.startswith("test") else split
        file = text_file(self.raw_dir, split, self.langs[0])
        paths = [self.work / f"{kind}.{lang}" for lang in self.langs if kind != "test"]
        line = itertools.count(1)
        with opened(paths) as outputs:
            for batch in batched(progress(self._read(split), f"split {split}")):
                for text, lengths in zip(batch, _lengths(self.final, batch)):
                    pair = Pair(*text, *lengths, file=file.name, line=next(line))
                    fault = self._fault(kind, pair) if next(is_first) else "duplicate"
                    if fault:
                        report.left_out.setdefault(split, Counter())[fault] += 1
                        continue
                    report.see(pair)
                    if kind == "test" or pair.source_tokens >= self.bins.threshold:
                        held_out.add(pair)
                    else:
                        report.keep(kind, pair)
                        for output, side in zip(outputs, text):
                            output.write(side + "\n")
        if kind != "test" and not report.kept[kind]["pairs"]:
            raise TextDataError(
                f"{file} has no pair of fewer than {self.bins.threshold} source tokens."
            )

    def _fault(self, kind: str, pair: Pair) -> str | None:
        # A line of invisible characters has no tokens either.
        if not min(pair.source_tokens, pair.target_tokens):
            return "empty"
        if max(pair.source_tokens, pair.target_tokens) > self.options.max_len:
            return "longer than max-len"
        if pair.source_tokens < self.bins.threshold:
            long_target = pair.target_tokens >= self.bins.threshold
            if kind != "test" and self.options.both_sides and long_target:
                return "long target"
        elif kind == "train" and self.provisional is not None:
            [(source, _)] = _lengths(self.provisional, [(pair.source, pair.target)])
            if source < self.bins.threshold:
                return "seen by the subword model"
        return None

    def _overlap(self, lang: str) -> dict[str, dict[str, float]]:
        paths = {name: self.work / f"{name}.{lang}" for name in (TEST, SHORT_TEST)}
        return {
            name: overlap(list(self._words(path)), self._words(self.work / f"train.{lang}"))
            for name, path in paths.items()
            if path.exists()
        }

    def _words(self, path: Path) -> Iterator[str]:
        for line in read_lines(path):
            yield join_pieces(line, "sentencepiece") if self.options.encoded else line


def _lengths(segmenter: Segmenter | None, batch: list[tuple[str, str]]) -> list[tuple[int, int]]:
    if segmenter is None:  # the text is in subwords already, or its words are the tokens
        return [(len(source.split()), len(target.split())) for source, target in batch]
    return [(len(source), len(target)) for source, target in segmenter.pieces(batch)]


def _check_paths(raw_dir: Path, out_dir: Path, spm_model: Path | None) -> None:
    """Check that no input is in ``out_dir``, which may be replaced, and that the model exists."""
    for path in filter(None, (raw_dir, spm_model)):
        if path.resolve() == out_dir or out_dir in path.resolve().parents:
            raise UsageError(f"OUT_DIR must not hold the input {path}; choose another OUT_DIR.")
    if spm_model is not None and not spm_model.is_file():
        raise TextDataError(f"There is no sentencepiece model {spm_model}.")
