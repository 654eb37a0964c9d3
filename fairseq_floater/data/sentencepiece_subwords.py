"""Learn one sentencepiece model for both languages, write its fairseq dictionary, encode with it."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import sentencepiece

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import say, shown
from fairseq_floater.files import write_text, write_whole

# In the text, fairseq would read these as its control symbols.
FAIRSEQ_SYMBOLS = frozenset(("<s>", "<pad>", "</s>", "<unk>"))
# sentencepiece keeps its training text in memory, some 300 bytes per sentence. So it learns from at
# most a million sentences; longer corpora are sampled evenly.
SUBWORD_PAIRS = 500_000
# How sentencepiece changes characters before it cuts: its default writes "，" as ",", "½" as "1⁄2".
NORMALIZATIONS = ("nmt_nfkc", "identity")
# fairseq splits text at every space of Unicode, so none may be in a subword. (NFKC drops U+001F.)
_OTHER_SPACES = re.compile(r"[^\S \x1f]")
_FEW_CHANGED = 0.01  # a share of references
LEARNED_ONLY = (
    "`--normalization` needs sentencepiece and `--vocab`: it applies only if subwords are learned."
)


def train_subword(
    pairs: Iterator[tuple[str, ...]],
    lines: int,
    model_path: Path,
    *,
    vocab_size: int,
    character_coverage: float = 1.0,
    separator: str | None = None,
    normalization: str | None = None,
) -> None:
    """Learn one sentencepiece BPE model from both sides of ``lines`` sentence pairs.

    The same text gives the same model. From more than :data:`SUBWORD_PAIRS` pairs an even sample is
    taken. A ``separator`` stays one subword. ``normalization`` is one of :data:`NORMALIZATIONS`.

    Raises:
        TextDataError: the text does not allow such a vocabulary, or the separator is not one word.
    """
    if separator and (separator in FAIRSEQ_SYMBOLS or re.search(r"[\s\u2581]", separator)):
        raise TextDataError(
            f"The separator must be one word, such as <s2>, and not a fairseq symbol, but is {separator!r}."
        )
    stride = max(1.0, lines / SUBWORD_PAIRS)
    sample = (pair for k, pair in enumerate(pairs) if int(k // stride) != int((k - 1) // stride))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(plain_spaces, itertools.chain.from_iterable(sample)),
            normalization_rule_name=normalization or NORMALIZATIONS[0],
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            user_defined_symbols=[separator] if separator else [],
            max_sentence_length=16_384,
            num_threads=4,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:  # a number that is not a C int is a ValueError
        raise TextDataError(_subword_fault(str(error), vocab_size)) from None
    write_whole(model_path, lambda temporary: temporary.write_bytes(model.getvalue()))


def write_dictionary(model_path: Path, dict_path: Path) -> None:
    """Write sentencepiece's vocabulary as a joint fairseq dictionary.

    All counts are 1, so that the order, and with it every index, depends on the model alone.
    """
    model = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
    pieces = [model.id_to_piece(i) for i in range(len(model)) if not model.is_control(i)]
    pieces = [piece for piece in pieces if piece not in FAIRSEQ_SYMBOLS]
    write_text(dict_path, "".join(f"{piece} 1\n" for piece in pieces))


def load_model(path: Path) -> sentencepiece.SentencePieceProcessor:
    """Read a sentencepiece model; raises TextDataError if the file is not one."""
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError):
        raise TextDataError(f"{path} is not a readable sentencepiece model.") from None


class Segmenter:
    """Cut pairs of raw sentences into subwords, as the model sees them (without the end symbol)."""

    def __init__(self, model_path: Path, threads: int = 1) -> None:
        self.model, self.threads = load_model(model_path), threads

    def pieces(
        self, batch: Sequence[tuple[str, str]], *, test: bool = False
    ) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the subwords of both sides; ``test`` sentences are cut like all others."""
        sides = [
            self.model.encode([*map(plain_spaces, side)], out_type=str, num_threads=self.threads)
            for side in zip(*batch)
        ]
        return zip(*([without_symbols(pieces) for pieces in side] for side in sides))

    def warn_of_changes(self, name: str, references: Sequence[str]) -> None:
        """Warn if the model cannot write many of the references: it changes or lacks characters."""
        texts: list[str] = self.model.decode(self.model.encode([*map(plain_spaces, references)]))
        pairs = zip(references, texts, strict=True)
        changed = [(line, text) for line, text in pairs if line.split() != text.split()]
        if len(changed) > _FEW_CHANGED * len(references):
            line, text = min(changed, key=lambda pair: len(pair[0]))
            say(
                f"warning: the subwords cannot write {len(changed):,} of {len(references):,} references in "
                f"{name}, which lowers BLEU: {shown(line)} becomes {shown(text)}. Subwords that are learned "
                "with `--normalization identity` (`data: normalization`) keep all characters of train."
            )


def plain_spaces(line: str) -> str:
    """Make every space of Unicode a plain one, since fairseq splits at each."""
    return _OTHER_SPACES.sub(" ", line)


def without_symbols(pieces: list[str], symbols: frozenset[str] = FAIRSEQ_SYMBOLS) -> list[str]:
    """Split pieces that fairseq would take for its symbols into characters."""
    if symbols.isdisjoint(pieces):
        return pieces
    return [c for piece in pieces for c in (piece if piece in symbols else [piece])]


def _subword_fault(reason: str, vocab: int) -> str:
    if high := re.search(r"value <= (\d+)", reason):
        return f"`vocab` must be at most {high[1]} for this text, but is {vocab} instead."
    if low := re.search(r"required_chars\. \d+ vs (\d+)", reason):
        return (
            f"`vocab` must be at least {low[1]}, one for each character of this text, but is "
            f"{vocab} instead; a smaller --character-coverage leaves rare characters out."
        )
    if "sentences_.empty()" in reason or "all_chars_count" in reason:
        return "The training text must hold characters to learn from, but its lines are all blank."
    return f"sentencepiece could not learn from this text: {' '.join(reason.split())}."
