"""Prepare text of one language for fairseq's language models, masked or not: subwords, dictionary, data.

The text has one paragraph per line and an empty line between documents. WikiText's raw files are read
as in RoBERTa's recipe: white space at the ends of lines is removed, and headings (``= Title =``) and
empty lines are kept.

fairseq's ``--sample-break-mode complete`` never cuts a line, and skips a line that is longer than
``--tokens-per-sample``; ``longest`` in the summary is the longest line. The mode ``none`` loses nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.data.moses_subwords import write_counted_dictionary
from fairseq_floater.data.parallel_text import TextDataError, batched, progress, read_lines
from fairseq_floater.data.products import PreparedFolder, make_folder
from fairseq_floater.data.sentencepiece_subwords import train_subword, write_dictionary
from fairseq_floater.data.understanding.binarise import (
    Vocabulary,
    binarise,
    check_dictionary,
    write_lines,
)
from fairseq_floater.data.understanding.subwords import (
    FOLDER,
    KINDS,
    SentencepieceSubwords,
    Subwords,
    load_subwords,
)
from fairseq_floater.errors import UsageError, say

# Merity et al. (2016), Table 1, counts an end symbol for each line as a word.
_WIKITEXT = {
    "wikitext-103": {"train": 103_227_021, "valid": 217_646, "test": 245_569},
    "wikitext-2": {"train": 2_088_628, "valid": 217_646, "test": 245_569},
}


class BpeOptions(NamedTuple):
    """The subwords to use: those of ``like``, ``bpe_dir`` or ``model``, or newly learned ones (``vocab``).

    ``dictionary`` is the ``dict.txt`` of a pretrained model; without it the dictionary is made from the
    training text (GPT-2's BPE, by frequency) or from the model (sentencepiece).
    """

    like: Path | None = None
    bpe: str | None = None
    bpe_dir: Path | None = None
    dictionary: Path | None = None
    vocab: int | None = None
    model: Path | None = None

    def check(self) -> None:
        """Raise UsageError if the options do not fit together."""
        others = (self.bpe, self.bpe_dir, self.dictionary, self.vocab, self.model)
        if self.like is not None and any(others):
            raise UsageError("`--like` replaces all other subword options: give it alone.")
        if self.like is None and self.bpe is None:
            raise UsageError("Give --like or --bpe.")
        if self.bpe == "gpt2" and (self.bpe_dir is None or self.vocab or self.model):
            raise UsageError("`--bpe gpt2` needs --bpe-dir and takes neither --vocab nor --model.")
        sources = sum(source is not None for source in (self.bpe_dir, self.vocab, self.model))
        if self.bpe == "sentencepiece" and sources != 1:
            raise UsageError(
                "`--bpe sentencepiece` needs exactly one of --vocab, --model and --bpe-dir."
            )

    def files(self) -> list[Path]:
        if self.like is not None:
            return Vocabulary.like(self.like).files
        names = KINDS[self.bpe].names if self.bpe else ()
        files = [self.bpe_dir / name for name in names] if self.bpe_dir else []
        return [*files, *(path for path in (self.dictionary, self.model) if path is not None)]


def prepare(
    out_dir: Path,
    texts: dict[str, Path],
    options: BpeOptions,
    *,
    workers: int = 1,
    force: bool = False,
) -> PreparedFolder:
    """Write ``dict.txt``, ``bpe/`` and the binary data of each split into ``out_dir``.

    Args:
        texts: {"train": file, "valid": file, ...}, plain or ``.gz``.

    Raises:
        TextDataError: the text or the subwords cannot be used, or other data are in the way.
    """
    options.check()
    parameters = {"bpe": options.bpe, "vocab": options.vocab, "splits": list(texts)}
    inputs = [*texts.values(), *options.files()]
    build = partial(_build, texts=texts, options=options, workers=workers)
    return make_folder(out_dir, parameters, inputs, build, force=force)


def _build(
    work: Path, *, texts: dict[str, Path], options: BpeOptions, workers: int
) -> dict[str, Any]:
    counts = {split: _count(path) for split, path in texts.items()}
    subwords = _subwords(work, texts["train"], counts["train"]["lines"], options)
    encoded = {split: work / "text" / split for split in texts}
    for split, path in texts.items():
        lines = progress(_lines(path), f"encode {split}", counts[split]["lines"], unit="lines")
        batches = map(subwords.encode_lines, batched(lines))
        counts[split] |= write_lines(encoded[split], chain.from_iterable(batches))
    dictionary = work / "dict.txt"
    _write_dictionary(dictionary, subwords, encoded["train"], options, workers)
    for split, text in encoded.items():
        written = binarise(text, dictionary, work / split, workers=workers)
        if (written.lines, written.words) != (counts[split]["lines"], counts[split]["subwords"]):
            raise TextDataError(
                f"fairseq wrote {written.lines:,} lines of {split}, but the text has "
                f"{counts[split]['lines']:,}; run again with --workers 1."
            )
        if options.dictionary is not None:
            check_dictionary(written, options.dictionary, str(texts[split]))
        counts[split]["unknown"] = written.unknown
    shutil.rmtree(work / "text")
    entries = dictionary.read_text(encoding="utf-8").count("\n")
    warnings = [w for split, path in texts.items() for w in _warnings(path, split, counts[split])]
    return {"dictionary": entries, "splits": counts, "warnings": warnings}


def _lines(path: Path) -> Iterator[str]:
    return (line.strip() for line in read_lines(path))


def _count(path: Path) -> dict[str, int]:
    counts = {"documents": 0, "lines": 0, "words": 0}
    inside = False
    for line in _lines(path):
        counts["lines"] += 1
        counts["words"] += len(line.split())
        counts["documents"] += bool(line) and not inside
        inside = bool(line)
    if counts["words"] == 0:
        raise TextDataError(f"{path} is empty.")
    return counts


def _warnings(path: Path, split: str, counts: dict[str, int]) -> Iterator[str]:
    """Warn of unknown subwords, and of a WikiText file (by its name) without the published word count."""
    name = path.resolve().parent.name
    corpus = next((corpus for corpus in _WIKITEXT if name.startswith(corpus)), None)
    if corpus is not None and path.name.startswith("wiki."):
        words, published = counts["words"] + counts["lines"], _WIKITEXT[corpus][split]
        if words != published:
            yield (
                f"{path} has {words:,} words (with one end symbol per line), but {published:,} "
                f"are published for {corpus}."
            )
    if counts["unknown"]:
        share = counts["unknown"] / counts["subwords"]
        yield f"{split}: {counts['unknown']:,} subwords ({share:.2%}) are not in the dictionary."


def _subwords(work: Path, train: Path, lines: int, options: BpeOptions) -> Subwords:
    folder = work / FOLDER
    if options.like is not None:
        load_subwords(options.like / FOLDER).store(folder)
    elif options.bpe and options.bpe_dir is not None:
        KINDS[options.bpe](options.bpe_dir).store(folder)
    else:
        folder.mkdir()
        model = folder / SentencepieceSubwords.names[0]
        if options.model is not None:
            shutil.copyfile(options.model, model)
        elif options.vocab is not None:
            say(f"Learning {options.vocab} subwords from {train}.")
            sentences = ((line,) for line in _lines(train))
            train_subword(sentences, lines, model, vocab_size=options.vocab)
    return load_subwords(folder)


def _write_dictionary(
    path: Path, subwords: Subwords, train: Path, options: BpeOptions, workers: int
) -> None:
    source = options.dictionary or (options.like and options.like / "dict.txt")
    if source:
        shutil.copyfile(source, path)
    elif subwords.kind == SentencepieceSubwords.kind:
        write_dictionary(subwords.files[0], path)
    else:
        write_counted_dictionary([train], path, workers)
