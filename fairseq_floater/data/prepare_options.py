"""The options of `floater prepare`."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from fairseq_floater.data.sentencepiece_subwords import NORMALIZATIONS
from fairseq_floater.data.subwords import SUBWORDS, WORDS
from fairseq_floater.verbs import positive, share


def cores(most: int) -> int:
    """Return the number of processor cores that this process may use, at most ``most``."""
    return min(len(os.sched_getaffinity(0)), most)


def _limit(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _ratio(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 0 (no limit) or at least 1, but is {text!r}")
    return float(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = (
        "train.LANG, valid.LANG and any test*.LANG of both languages, UTF-8, plain or .gz; test.groups, "
        "if present, names a group for each line of test; scores by group are added"
    )
    add("raw_dir", metavar="RAW_DIR", type=Path, help=text)
    add("out_dir", metavar="OUT_DIR", type=Path)
    add("--src", required=True, metavar="LANG", help="source language, as in the file names")
    add("--tgt", required=True, metavar="LANG", help="target language")
    subwords = parser.add_mutually_exclusive_group(required=True)
    text = "number of subwords to learn, shared by both languages"
    subwords.add_argument("--vocab", type=positive, metavar="N", help=text)
    text = "a sentencepiece model to use instead (for example, of `floater s2l split`)"
    subwords.add_argument("--spm-model", type=Path, metavar="FILE", help=text)
    text = "no subwords: text is split at spaces; words that are not in train are unknown"
    subwords.add_argument("--subwords", choices=(WORDS,), help=text)
    text = "with --subwords none: a dictionary for each language, not one for both"
    add("--separate-dictionaries", action="store_true", help=text)
    text = (
        "sentencepiece (default, on raw text), or subword-nmt: Moses tokens cut by a joint BPE of N "
        "merges, as in the published WMT14 results"
    )
    add("--bpe", choices=SUBWORDS, default="sentencepiece", help=text)
    text = "drop train and valid pairs above N subwords on a side (250; 0 = keep)"
    add("--max-len", type=_limit, default=250, metavar="N", help=text)
    text = "drop train and valid pairs with one side more than R times the other (0 = keep)"
    add("--max-ratio", type=_ratio, default=0.0, metavar="R", help=text)
    text = "share of characters that the subwords cover (1.0)"
    add("--character-coverage", type=share, default=1.0, metavar="C", help=text)
    text = "identity: keep all characters, such as full-width commas (nmt_nfkc, sentencepiece's default)"
    add("--normalization", choices=NORMALIZATIONS, help=text)
    text = "word between the sentences of a document (floater documents), kept as one subword"
    add("--separator", metavar="SYMBOL", help=text)
    text = "processes (the number of cores, at most 8)"
    add("--workers", type=positive, default=cores(8), metavar="N", help=text)
    text = "start over if OUT_DIR was made from other text or settings"
    add("--force", action="store_true", help=text)
    add("--dry-run", action="store_true", help="print the commands, do not run them")
    text = "only the step before or after fairseq-preprocess; --dry-run prints all three"
    add("--only", choices=("encode", "finish"), help=text)
