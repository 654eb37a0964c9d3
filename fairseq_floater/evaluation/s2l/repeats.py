"""Find lines that occur twice, in one corpus or in two: exact duplicates, and 13-grams in common.

Lines are compared by 64-bit hashes: among 36 million lines (WMT14 En-Fr) the chance that any two
different ones are taken for the same is about 4 in 100,000.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_floater.data.parallel_text import batched

NGRAM = 13
_BATCH = 50_000
# The golden ratio times 2^64: odd, so that multiplying by it loses nothing modulo 2^64.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


def line_hash(*sides: str) -> int:
    """Return 64 bits of a line or a pair of lines; runs of spaces count as one."""
    text = "\n".join(" ".join(side.split()) for side in sides)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def first_occurrences(pairs: Iterable[tuple[str, str]]) -> NDArray[np.bool_]:
    """Tell which pairs are the first of their kind: [N] bool. Takes some 40 bytes a pair."""
    hashes = np.fromiter((line_hash(*pair) for pair in pairs), dtype=np.uint64)
    _, first = np.unique(hashes, return_index=True)
    is_first = np.zeros(len(hashes), dtype=np.bool_)
    is_first[first] = True
    return is_first


def ngram_hashes(line: str) -> Hashes:
    """Return a hash of every :data:`NGRAM` words in a row, in lower case; none of shorter lines.

    Words are what spaces separate: text without spaces (Chinese, Japanese) has none to compare.
    """
    words = np.array([zlib.crc32(w.encode()) for w in line.lower().split()], dtype=np.uint64)
    if len(words) < NGRAM:
        return np.empty(0, dtype=np.uint64)
    words *= _MULTIPLIER
    size = len(words) - NGRAM + 1
    hashes = np.zeros(size, dtype=np.uint64)
    for j in range(NGRAM):
        hashes = hashes * _MULTIPLIER + words[j : j + size]
    return hashes


class Overlap:
    """Measure how much of some held-out lines also stands in a training corpus.

    Memory grows with the held-out lines alone; the training corpus streams by.
    """

    def __init__(self, held_out: Sequence[str]):
        self.lines = np.array([line_hash(line) for line in held_out], dtype=np.uint64)
        grams = [ngram_hashes(line) for line in held_out]
        self.sizes = [len(g) for g in grams]
        every = np.concatenate([np.empty(0, dtype=np.uint64), *grams])
        self.known, self.positions = np.unique(every, return_inverse=True)
        self.known_lines = np.unique(self.lines)
        self.seen = np.zeros(len(self.known), dtype=np.bool_)
        self.seen_lines = np.zeros(len(self.known_lines), dtype=np.bool_)

    def add_training(self, lines: Iterable[str]) -> None:
        for batch in batched(lines, _BATCH):
            _mark(self.known, self.seen, np.concatenate([ngram_hashes(line) for line in batch]))
            hashes = np.array([line_hash(line) for line in batch], dtype=np.uint64)
            _mark(self.known_lines, self.seen_lines, hashes)

    def counts(self) -> dict[str, int]:
        """Count the held-out lines, and those whose line, any 13-gram or half of them is in training."""
        hits = self.seen[self.positions.reshape(-1)]
        ends = np.cumsum(self.sizes)
        found = [
            float(hits[end - size : end].mean()) if size else 0.0
            for size, end in zip(self.sizes, ends)
        ]
        same = self.seen_lines[np.searchsorted(self.known_lines, self.lines)]
        return {
            "lines": len(found),
            "same_line": int(same.sum()),
            "any_13gram": sum(share > 0 for share in found),
            "half_of_13grams": sum(share >= 0.5 for share in found),
        }


def _mark(known: Hashes, seen: NDArray[np.bool_], hashes: Hashes) -> None:
    if len(known) and len(hashes):
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        seen[places[known[places] == hashes]] = True
