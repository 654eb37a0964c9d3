"""Raw text prepared for fairseq, and what is in its files. Not a test file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.prepare import Preparation
from fairseq_floater.data.sentencepiece_subwords import train_subword

PARAMETERS = {"src": "en", "tgt": "de", "bpe": "sentencepiece", "vocab": 60}
PARAMETERS |= {"max_len": 250, "max_ratio": 0.0, "character_coverage": 1.0}
VOCAB = ("--src", "en", "--tgt", "de", "--vocab", "60")


def learn(raw: Path, path: Path, vocab: int) -> None:
    pairs = list(zip(text_lines(raw / "train.en"), text_lines(raw / "train.de"), strict=True))
    train_subword(iter(pairs), len(pairs), path, vocab_size=vocab)


def text_lines(path: Path) -> list[str]:
    """Return the lines of a file; only a line feed ends a line."""
    return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refused(raw: Path, out: Path, message: str, **changes: Any) -> None:
    force = changes.pop("force", False)
    with pytest.raises(TextDataError, match=f"^{message}$"):
        encode_all(raw, out, force=force, **changes)


def encode_all(
    raw: Path,
    out: Path,
    force: bool = False,
    workers: int = 1,
    spm_model: Path | None = None,
    **changes: Any,
) -> None:
    settings: dict[str, Any] = {"spm_model": spm_model, "force": force, "workers": workers}
    Preparation(raw, out, {**PARAMETERS, **changes}, **settings).encode()


def zipped(name: str, size: int | None, keep: bool = False) -> Callable[[Path], object]:
    def spoil(raw: Path) -> None:
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes())[:size])
        if not keep:
            (raw / name).unlink()

    return spoil
