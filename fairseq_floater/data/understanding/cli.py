"""Add the verb mlm: text for masked language modelling."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_floater.data import wikitext
from fairseq_floater.data.prepare_options import cores
from fairseq_floater.data.products import PreparedFolder
from fairseq_floater.data.understanding import masked_lm
from fairseq_floater.data.understanding.binarise import Vocabulary
from fairseq_floater.data.understanding.subwords import KINDS
from fairseq_floater.verbs import add_parts, add_verb, from_options, positive


def add_mlm(verbs: Any) -> None:
    parts = add_parts(verbs, "mlm")
    fetch = add_verb(
        parts,
        "wikitext",
        "bash scripts/prepare_mlm.sh data/mlm --bpe gpt2",
        from_options(wikitext.run),
        summary="the steps of scripts/prepare_mlm.sh, which fetches WikiText-103 and GPT-2's BPE",
        json=False,
    )
    wikitext.add_options(fetch)
    prepare = add_verb(
        parts,
        "prepare",
        "floater mlm prepare data/mlm --train train.txt --valid valid.txt --bpe sentencepiece "
        "--vocab 8000",
        _prepare,
        summary="raw text, a paragraph a line, an empty line between documents -> data of fairseq's "
        "tasks masked_lm and language_modeling, with dict.txt and the subwords (bpe/)",
    )
    add = prepare.add_argument
    add("out_dir", type=Path, metavar="OUT")
    for split in ("train", "valid", "test"):
        add(f"--{split}", type=Path, required=split == "train", metavar="FILE")
    add_subword_options(prepare)
    text = "learn N subwords from --train (sentencepiece)"
    add("--vocab", type=positive, metavar="N", help=text)
    add("--model", type=Path, metavar="FILE", help="a sentencepiece model to use instead")
    add("--workers", type=positive, default=cores(8), metavar="N", help="processes (at most 8)")
    add("--force", action="store_true", help="replace OUT if it was made from other text")


def add_subword_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "use the subwords and dict.txt of these prepared data"
    add("--like", type=Path, metavar="DATA", help=text)
    add("--bpe", choices=tuple(KINDS))
    text = "folder with encoder.json and vocab.bpe, or with sentencepiece.model"
    add("--bpe-dir", type=Path, metavar="DIR", help=text)
    text = "dict.txt of a pretrained model"
    add("--dict", dest="dictionary", type=Path, metavar="FILE", help=text)


def with_vocabulary(prepare: Callable[..., PreparedFolder]) -> Callable[..., PreparedFolder]:
    """Wrap ``prepare`` for a verb, with the options of the subwords instead of a ``vocabulary``."""

    def run(**options: Any) -> PreparedFolder:
        chosen = {name: options.pop(name) for name in ("like", "bpe", "bpe_dir", "dictionary")}
        return prepare(vocabulary=Vocabulary.chosen(**chosen), **options)

    return run


def _prepare(
    out_dir: Path,
    *,
    train: Path,
    valid: Path | None,
    test: Path | None,
    workers: int,
    force: bool,
    **options: Any,
) -> PreparedFolder:
    texts = {"train": train, "valid": valid, "test": test}
    return masked_lm.prepare(
        out_dir,
        {split: path for split, path in texts.items() if path is not None},
        masked_lm.BpeOptions(**options),
        workers=workers,
        force=force,
    )
