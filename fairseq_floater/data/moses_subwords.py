"""Segment Moses tokens with subword-nmt: the preprocessing of papers that use fairseq's WMT14 recipe.

The steps are those of fairseq's ``prepare-wmt14en2de.sh``, with sacremoses instead of Moses' Perl
scripts. In training text, punctuation is normalised and control characters are removed; in test text,
``’`` becomes ``'``. Then all text is tokenised, with hyphens split off (``-a``), and segmented by a
joint byte-pair encoding (Sennrich et al., 2016). The two tokenisers differ on rare characters, so
vocabularies are similar, not equal.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError, batched
from fairseq_floater.files import write_text, write_whole

_Pair = tuple[str, str]


class MosesTokens:
    """Split sentences of one language into Moses tokens, special characters escaped.

    Args:
        language: a code such as ``de``; sacremoses uses English rules for languages that it does not know.
    """

    def __init__(self, language: str) -> None:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # slow to import

        self._normaliser = MosesPunctNormalizer(language, post_remove_control_chars=True)
        self._tokeniser = MosesTokenizer(language)

    def training(self, line: str) -> list[str]:
        """Return the tokens of a sentence of train or valid."""
        return self._tokens(self._normaliser.normalize(line))

    def test(self, line: str) -> list[str]:
        """Return the tokens of a test sentence; its punctuation is not normalised."""
        return self._tokens(line.replace("’", "'"))

    def _tokens(self, line: str) -> list[str]:
        # The normaliser writes characters at which a tool may break lines; str.split drops them.
        text = self._tokeniser.tokenize(line, aggressive_dash_splits=True, return_str=True)
        return str(text).split()


# The state of a worker: set once by `_load`, read by the functions below.
_loaded: dict[str, Any] = {}


def _pool(workers: int, langs: tuple[str, str], codes: str | None = None) -> Pool:
    return get_context("fork").Pool(workers, _load, (langs, codes))


def _load(langs: tuple[str, str], codes: str | None) -> None:
    _loaded["tokens"] = [MosesTokens(lang) for lang in langs]
    if codes is not None:
        from subword_nmt.apply_bpe import BPE

        _loaded["bpe"] = BPE(io.StringIO(codes))


def _count_words(pairs: Sequence[_Pair]) -> Counter[str]:
    words: Counter[str] = Counter()
    for side, tokens in zip(zip(*pairs), _loaded["tokens"]):
        for line in side:
            words.update(tokens.training(line))
    return words


def _cut(pair: _Pair, *, test: bool) -> tuple[list[str], ...]:
    return tuple(
        _loaded["bpe"].segment_tokens(tokens.test(text) if test else tokens.training(text))
        for text, tokens in zip(pair, _loaded["tokens"])
    )


def train_codes(
    pairs: Iterator[_Pair],
    langs: tuple[str, str],
    path: Path,
    *,
    merges: int,
    workers: int = 1,
) -> None:
    """Learn a joint byte-pair encoding from every sentence of ``pairs``."""
    from subword_nmt.learn_bpe import learn_bpe

    words: Counter[str] = Counter()
    with _pool(workers, langs) as pool:
        for batch in batched(pairs):
            for part in pool.map(_count_words, batched(batch, -(-len(batch) // workers))):
                words.update(part)
    # Sort, so that the order of the text does not decide between words of the same count.
    listed = "".join(f"{word} {count}\n" for word, count in sorted(words.items()))
    codes = io.StringIO()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its bar would fill log files
            learn_bpe(io.StringIO(listed), codes, merges, is_dict=True)
    except ValueError:
        raise TextDataError("subword-nmt found no pair of characters to learn from.") from None
    write_text(path, codes.getvalue())


class MosesSegmenter:
    """Cut pairs of raw sentences into subwords, as the model sees them (without the end symbol)."""

    def __init__(self, codes_path: Path, langs: tuple[str, str], workers: int = 1) -> None:
        codes = codes_path.read_text(encoding="utf-8")
        if not codes.startswith("#version:"):
            raise TextDataError(f"{codes_path} is not a file of subword-nmt codes.")
        self._pool = _pool(workers, langs, codes)

    def pieces(
        self, batch: Sequence[_Pair], *, test: bool = False
    ) -> Iterable[tuple[list[str], ...]]:
        """Return the subwords of both sides; ``test``: whether they are test sentences."""
        return self._pool.map(functools.partial(_cut, test=test), batch)

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


def write_counted_dictionary(texts: Sequence[Path], dict_path: Path, workers: int = 1) -> None:
    """Write the joint dictionary of encoded texts as fairseq counts it."""
    from fairseq.data import Dictionary  # slow to import
    from fairseq.tokenizer import tokenize_line

    dictionary = Dictionary()
    for text in texts:
        Dictionary.add_file_to_dictionary(str(text), dictionary, tokenize_line, workers)
    dictionary.finalize()
    write_whole(dict_path, lambda temporary: dictionary.save(str(temporary)))
