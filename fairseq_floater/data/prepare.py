"""Make binarised fairseq data from raw parallel text, for `scripts/prepare_text.sh`.

The step `encode` checks the text, learns the subwords, encodes and writes the joint dictionary. Then
`fairseq-preprocess` runs, and the step `finish` (`binarised.py`) checks its output.
All text is streamed, and every output is made completely or not at all.
"""

from __future__ import annotations

import itertools
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.data.binarised import MANIFEST, binarise, binarise_command, finish
from fairseq_floater.data.moses_subwords import (
    MosesSegmenter,
    train_codes,
    write_counted_dictionary,
)
from fairseq_floater.data.parallel_text import (
    TextDataError,
    check_languages,
    check_parallel,
    find_splits,
    progress,
    read_lines,
    read_pairs,
    text_file,
)
from fairseq_floater.data.pieces import check_pieces
from fairseq_floater.data.products import Origin, is_made
from fairseq_floater.data.sentencepiece_subwords import (
    LEARNED_ONLY,
    Segmenter,
    train_subword,
    write_dictionary,
)
from fairseq_floater.data.subwords import SEGMENTATIONS, SUBWORDS, WORDS, WordSplitter, encode_split
from fairseq_floater.errors import UsageError, say
from fairseq_floater.files import (
    file_hash,
    naming,
    put_folder,
    remove_folder,
    write_text,
    write_whole,
)
from fairseq_floater.records import write_json
from fairseq_floater.verbs import as_options, dashed

PRODUCTS = [name for kind in SEGMENTATIONS.values() for name in (kind.folder, kind.model)]
PRODUCTS += ["raw", "bin", "dict.txt", "tests.json", "summary.json"]
_STEP = (sys.executable, "-m", "fairseq_floater", "prepare")


class Preparation:
    """Make everything in ``out_dir`` except ``bin``; keep what the same text and parameters made."""

    def __init__(
        self,
        raw_dir: Path,
        out_dir: Path,
        parameters: dict[str, Any],
        *,
        spm_model: Path | None = None,
        force: bool = False,
        workers: int = 1,
    ) -> None:
        self.raw_dir, self.out_dir, self.parameters = raw_dir, out_dir, parameters
        self.spm_model, self.force, self.workers = spm_model, force, workers
        self.langs = (parameters["src"], parameters["tgt"])
        folder, model, _ = SEGMENTATIONS[parameters["bpe"]]
        self.model, self.text = out_dir / model, out_dir / folder
        self.splits = find_splits(raw_dir, *self.langs)

    def encode(self) -> None:
        """Run every step whose products are missing."""
        origin = self._origin()
        stale = self._stale_products(origin)
        encoded = not stale and self.text.is_dir() and (self.out_dir / "raw").is_dir()
        lines = {}
        if not encoded:
            texts = [text_file(self.raw_dir, s, lang) for s in self.splits for lang in self.langs]
            check_pieces(texts, encoded=False)
            lines = check_parallel(self.raw_dir, *self.langs, self.splits)
            separator, train = self.parameters.get("separator"), texts[:2]
            if separator and not any(separator in line for t in train for line in read_lines(t)):
                say(f"warning: no line of train holds the separator `{separator}`.")
        for name in [*stale, f".{self.text.name}.tmp", ".raw.tmp", ".bin.tmp", ".bin.gone"]:
            _remove(self.out_dir / name)
        write_json(self.out_dir / MANIFEST, origin._asdict())

        if self.parameters["bpe"] == WORDS:
            pass  # nothing to learn
        elif self.model.is_file():
            say(f"{self.model.name} exists already: skipped.")
        elif self.spm_model is not None:
            write_whole(self.model, partial(shutil.copyfile, self.spm_model))
        else:
            self._learn(lines["train"])
        if encoded:
            say(f"{self.text.name} exists already: skipped.")
        else:
            self._encode_splits(lines)
        dictionary = self.out_dir / "dict.txt"
        if not dictionary.is_file():
            self._write_dictionary(dictionary)
        subsets = {split: f"test{k or ''}" for k, split in enumerate(self.splits[2:])}
        write_json(self.out_dir / "tests.json", subsets)

    def _origin(self) -> Origin:
        """Return the parameters and the checksums of all inputs; refuse inputs that cannot be used."""
        outputs = {(self.out_dir / name).resolve() for name in PRODUCTS}
        for option, path in (("RAW_DIR", self.raw_dir), ("--spm-model", self.spm_model)):
            if path and not outputs.isdisjoint([path.resolve(), *path.resolve().parents]):
                raise TextDataError(
                    f"{option} must not be {path}, because output goes there; move it or choose another "
                    "OUT_DIR."
                )
        inputs = [text_file(self.raw_dir, s, lang) for s in self.splits for lang in self.langs]
        inputs += filter(Path.is_file, map(self._groups, self.splits[2:]))
        if self.spm_model is not None:
            Segmenter(self.spm_model)  # raises TextDataError if it is not a model
            inputs.append(self.spm_model)
        return Origin(self.parameters, {path.name: file_hash(path) for path in inputs})

    def _stale_products(self, origin: Origin) -> list[str]:
        """Return the products to delete before work can start; raise an error if only --force allows it."""
        present = [name for name in PRODUCTS if (self.out_dir / name).exists()]
        if not present:
            return []
        old = Origin.read(self.out_dir / MANIFEST)
        if old is None:
            raise TextDataError(
                f"{self.out_dir} holds `{present[0]}`, which floater did not make; choose another "
                "OUT_DIR."
            )
        is_made(self.out_dir, old, origin, force=self.force, option="OUT_DIR")
        # Encoded text is of no use without its model.
        return present if self.force or not self.model.is_file() else []

    def _learn(self, lines: int) -> None:
        options, langs = self.parameters, self.langs
        say(f"Learning {options['vocab']} subwords from {lines:,} pairs.")
        pairs = progress(read_pairs(self.raw_dir, "train", *langs), "learn", lines)
        if options["bpe"] == "sentencepiece":
            train_subword(
                pairs,
                lines,
                self.model,
                vocab_size=options["vocab"],
                character_coverage=options["character_coverage"],
                separator=options.get("separator"),
                normalization=options.get("normalization"),
            )
        else:
            train_codes(pairs, langs, self.model, merges=options["vocab"], workers=self.workers)

    def _groups(self, test: str) -> Path:
        return self.raw_dir / f"{test}.groups"

    def _segmenter(self) -> AbstractContextManager[Segmenter | MosesSegmenter | WordSplitter]:
        if self.parameters["bpe"] == WORDS:
            return nullcontext(WordSplitter())
        if self.parameters["bpe"] == "sentencepiece":
            return nullcontext(Segmenter(self.model, self.workers))
        return closing(MosesSegmenter(self.model, self.langs, self.workers))

    def _write_dictionary(self, path: Path) -> None:
        if self.parameters["bpe"] == "sentencepiece":
            write_dictionary(self.model, path)
        else:
            texts = [self.text / f"train.{lang}" for lang in self.langs]
            write_counted_dictionary(texts, path, self.workers)

    def _encode_splits(self, lines: dict[str, int]) -> None:
        """Encode every split of ``lines`` into temporary folders, then put all of them in place."""
        folders = [self.out_dir / name for name in (f".{self.text.name}.tmp", ".raw.tmp")]
        for folder in folders:
            folder.mkdir()
        limits = {name: self.parameters[name] for name in ("max_len", "max_ratio")}
        counts = {}
        tests = {test: [*read_pairs(self.raw_dir, test, *self.langs)] for test in self.splits[2:]}
        tested = {pair for pair in itertools.chain(*tests.values()) if all(pair)}
        trained: set[tuple[str, str]] = set()
        with self._segmenter() as segmenter:
            for split, total in lines.items():
                pairs = read_pairs(self.raw_dir, split, *self.langs)
                if split == "train":
                    pairs = _noting(pairs, tested, trained)
                pairs = progress(pairs, f"encode {split}", total)
                counts[split] = encode_split(segmenter, pairs, split, self.langs, folders, **limits)
            if isinstance(segmenter, Segmenter):
                for test in tests:
                    name, references = f"{test}.{self.langs[1]}", [t for _, t in tests[test]]
                    segmenter.warn_of_changes(name, references)
        for test in self.splits[2:]:
            if count := sum(pair in trained for pair in tests[test]):
                say(f"warning: {count:,} of {lines[test]:,} pairs of {test} are in train too.")
            if (path := self._groups(test)).is_file():
                names = list(read_lines(path))
                if len(names) != lines[test]:
                    raise TextDataError(
                        f"{path} has {len(names):,} lines, but {test} has {lines[test]:,}."
                    )
                write_text(folders[1] / path.name, "".join(f"{name}\n" for name in names))
        write_json(folders[0] / "counts.json", counts)
        _remove(self.text)
        # The dictionary may have been counted from the text that is removed.
        _remove(self.out_dir / "dict.txt")
        put_folder(folders[1], self.out_dir / "raw")
        put_folder(folders[0], self.text)  # last: it marks all of them as complete


def _noting(
    pairs: Iterator[tuple[str, str]], wanted: set[tuple[str, str]], found: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield ``pairs``, and add those that are ``wanted`` to ``found``."""
    for pair in pairs:
        if pair in wanted:
            found.add(pair)
        yield pair


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def prepare(
    raw_dir: Path,
    out_dir: Path,
    *,
    spm_model: Path | None = None,
    force: bool = False,
    workers: int = 1,
    dry_run: bool = False,
    only: str | None = None,
    subwords: str | None = None,
    separate_dictionaries: bool = False,
    **parameters: Any,
) -> dict[str, Any] | None:
    """Write the data of ``raw_dir`` to ``out_dir``; return their summary once they are complete.

    ``parameters`` are the options that shape the data, by their names in Python.

    Raises:
        UsageError: the languages are invalid, or options do not fit together.
        TextDataError: the text cannot be used, or other data are in the way.
    """
    check_languages(parameters["src"], parameters["tgt"])
    is_sentencepiece = not subwords and parameters["bpe"] == SUBWORDS[0]
    for option, value in (("--spm-model", spm_model), ("--separator", parameters.get("separator"))):
        if value and not is_sentencepiece:
            raise UsageError(
                f"{option} needs sentencepiece, but the subwords are {subwords or parameters['bpe']}."
            )
    if parameters.get("normalization") and (spm_model or not is_sentencepiece):
        raise UsageError(LEARNED_ONLY)
    if subwords and parameters["bpe"] != SUBWORDS[0]:
        raise UsageError(
            f"`--subwords {subwords}` cannot be given with `--bpe {parameters['bpe']}`."
        )
    if separate_dictionaries and not subwords:
        raise UsageError("`--separate-dictionaries` needs `--subwords none`: subwords are joint.")
    if subwords:
        parameters["bpe"] = subwords
    if separate_dictionaries:  # older data have no such parameter
        parameters["separate_dictionaries"] = True
    with naming(out_dir):
        if only == "finish":
            return finish(out_dir)
        preparation = Preparation(
            raw_dir, out_dir, parameters, spm_model=spm_model, force=force, workers=workers
        )
        command = binarise_command(out_dir, parameters, preparation.splits[2:], workers)
        if dry_run:
            options = {**parameters, "spm_model": spm_model, "workers": workers, "force": force}
            if subwords:
                options["subwords"] = options.pop("bpe")
            argv = [str(raw_dir), str(out_dir), *as_options(dashed(options))]
            step = shlex.join([*_STEP, *argv, "--only"])
            print(f"{step} encode\n{shlex.join(command)}\n{step} finish")
            return None
        preparation.encode()
        if only == "encode":
            return None
        binarise(out_dir, command)
        return finish(out_dir)
