"""Moses tokens cut by subword-nmt: the preprocessing of the papers that use fairseq's WMT14 recipe.

The steps are those of fairseq's ``prepare-wmt14en2de.sh``, with sacremoses in the place of Moses' Perl
scripts: training text has its punctuation normalised and control characters removed, test text only its
``’`` made ``'``; then everything is tokenised, hyphens split off (``-a``), and cut by a joint byte-pair
encoding (Sennrich et al., 2016). The two tokenisers differ on rare characters, so vocabularies are
alike, not equal.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError, batched
from fairseq_floater.files import write_text, write_whole

BATCH = 10_000
_Pair = tuple[str, str]


class MosesTokens:
    """Sentences of one language -> their Moses tokens, special characters escaped.

    Args:
        language: a code such as ``de``; sacremoses takes English rules for those it does not know.
    """

    def __init__(self, language: str) -> None:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # slow to import

        self._normaliser = MosesPunctNormalizer(language, post_remove_control_chars=True)
        self._tokeniser = MosesTokenizer(language)

    def training(self, line: str) -> list[str]:
        """Tokens of a sentence of train or valid."""
        return self._tokens(self._normaliser.normalize(line))

    def test(self, line: str) -> list[str]:
        """Tokens of a sentence that is to be scored: the recipe leaves its punctuation alone."""
        return self._tokens(line.replace("’", "'"))

    def _tokens(self, line: str) -> list[str]:
        # The normaliser writes characters at which a tool may break lines; str.split drops them.
        text = self._tokeniser.tokenize(line, aggressive_dash_splits=True, return_str=True)
        return str(text).split()


class Workers:
    """Processes that apply one function to batches of sentence pairs, in order.

    ``function(pairs, **options)`` must be of a module's top level; one worker runs it in this process.
    """

    def __init__(self, workers: int, prepare: Callable[..., None], *state: Any) -> None:
        self.workers = workers
        self._pool = None
        if workers > 1:
            self._pool = get_context("fork").Pool(workers, _prepare_worker, (prepare, state))
        else:
            prepare(*state)

    def map(self, function: Callable[[Sequence[_Pair]], Any], pairs: Sequence[_Pair]) -> list[Any]:
        """The results of slices of ``pairs``, in their order."""
        if self._pool is None:
            return [function(pairs)]
        size = max(1, -(-len(pairs) // (4 * self.workers)))
        return self._pool.map(function, list(batched(pairs, size)), chunksize=1)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prepare_worker(prepare: Callable[..., None], state: tuple[Any, ...]) -> None:
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    # A killed parent cannot end its workers: they would wait for work for ever.
    threading.Thread(target=end_with_parent, daemon=True).start()
    prepare(*state)


# What a worker holds: set once by `_load`, read by the functions below.
_loaded: dict[str, Any] = {}


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


def _cut_training(pairs: Sequence[_Pair]) -> list[tuple[list[str], list[str]]]:
    return _cut(pairs, [tokens.training for tokens in _loaded["tokens"]])


def _cut_test(pairs: Sequence[_Pair]) -> list[tuple[list[str], list[str]]]:
    return _cut(pairs, [tokens.test for tokens in _loaded["tokens"]])


def _cut(pairs: Sequence[_Pair], sides: list[Any]) -> list[tuple[list[str], list[str]]]:
    bpe = _loaded["bpe"]
    return [
        (bpe.segment_tokens(sides[0](source)), bpe.segment_tokens(sides[1](target)))
        for source, target in pairs
    ]


def train_codes(
    pairs: Iterator[_Pair],
    langs: tuple[str, str],
    path: Path,
    *,
    merges: int,
    workers: int = 1,
) -> None:
    """Learn ``merges`` operations of a joint byte-pair encoding from every sentence of ``pairs``.

    Raises:
        TextDataError: no word occurs twice, so there is nothing to learn.
    """
    from subword_nmt.learn_bpe import learn_bpe

    words: Counter[str] = Counter()
    with Workers(workers, _load, langs, None) as pool:
        for batch in batched(pairs, BATCH):
            for part in pool.map(_count_words, batch):
                words.update(part)
    # A fixed order: words of the same count are met in the order of the text otherwise.
    listed = "".join(f"{word} {count}\n" for word, count in sorted(words.items()))
    codes = io.StringIO()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its bar is drawn in a log file too
            learn_bpe(io.StringIO(listed), codes, merges, is_dict=True)
    except ValueError:
        raise TextDataError("subword-nmt found no pair of characters to learn from.") from None
    write_text(path, codes.getvalue())


class MosesSegmenter:
    """Pairs of raw sentences -> subwords, as the model will see them (no end symbol).

    Raises:
        TextDataError: the file holds no codes of subword-nmt.
    """

    def __init__(self, codes_path: Path, langs: tuple[str, str], workers: int = 1) -> None:
        codes = codes_path.read_text(encoding="utf-8")
        if not codes.startswith("#version:"):
            raise TextDataError(f"{codes_path} holds no codes of subword-nmt.")
        self.workers = Workers(workers, _load, langs, codes)

    def pieces(
        self, batch: Sequence[_Pair], *, test: bool = False
    ) -> Iterator[tuple[list[str], list[str]]]:
        """The subwords of both sides; ``test``: of sentences that are to be scored."""
        parts = self.workers.map(_cut_test if test else _cut_training, batch)
        return itertools.chain.from_iterable(parts)

    def close(self) -> None:
        self.workers.close()


def write_counted_dictionary(texts: Sequence[Path], dict_path: Path, workers: int = 1) -> int:
    """Write the joint dictionary of encoded texts as fairseq counts it; returns its entries."""
    from fairseq.data import Dictionary  # slow to import
    from fairseq.tokenizer import tokenize_line

    dictionary = Dictionary()
    for text in texts:
        Dictionary.add_file_to_dictionary(str(text), dictionary, tokenize_line, workers)
    dictionary.finalize()
    write_whole(dict_path, lambda temporary: dictionary.save(str(temporary)))
    return len(dictionary) - dictionary.nspecial
