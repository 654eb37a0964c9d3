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


def overlap(held_out: Sequence[str], training: Iterable[str]) -> dict[str, float]:
    """Measure how much of some held-out lines also stands in a training corpus.

    Memory grows with the held-out lines alone; the training corpus streams by.

    Returns:
        The shares 0..1 of held-out lines of which the line itself, any 13-gram, and at least half of the
        13-grams stand in the training corpus.
    """
    lines = np.array([line_hash(line) for line in held_out], dtype=np.uint64)
    grams = [ngram_hashes(line) for line in held_out]
    known_lines, known = np.unique(lines), np.unique(np.concatenate(grams))
    seen_lines, seen = np.zeros(len(known_lines), np.bool_), np.zeros(len(known), np.bool_)
    for batch in batched(training, _BATCH):
        hashes = np.array([line_hash(line) for line in batch], dtype=np.uint64)
        _mark(known_lines, seen_lines, hashes)
        _mark(known, seen, np.concatenate([ngram_hashes(line) for line in batch]))
    hits = np.array([seen[np.searchsorted(known, g)].mean() if len(g) else 0.0 for g in grams])
    return {
        "same_line": float(seen_lines[np.searchsorted(known_lines, lines)].mean()),
        "any_13gram": float((hits > 0).mean()),
        "half_of_13grams": float((hits >= 0.5).mean()),
    }


def _mark(known: Hashes, seen: NDArray[np.bool_], hashes: Hashes) -> None:
    """Mark those of the sorted ``known`` hashes as seen that are among ``hashes``."""
    if len(known) and len(hashes):
        places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
        seen[places[known[places] == hashes]] = True
