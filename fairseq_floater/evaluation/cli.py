"""Add the verb score."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_floater.data.pieces import BPE_MARKS
from fairseq_floater.evaluation import bleu
from fairseq_floater.evaluation.hypotheses import FORMATS
from fairseq_floater.evaluation.metrics import TOKENIZERS
from fairseq_floater.verbs import add_verb


def add_score(verbs: Any) -> None:
    example = "floater score generate.txt --references test.de --target-lang de --json scores.json"
    parser = add_verb(verbs, "score", example, bleu.score_files)
    add = parser.add_argument
    add("hypotheses_path", metavar="HYPOTHESES", help="fairseq-generate's output, or plain lines")
    text = "raw text, one sentence a line"
    add("--references", dest="references_path", required=True, metavar="FILE", help=text)
    text = "language of the references, such as de"
    add("--target-lang", dest="target_language", required=True, metavar="LANG", help=text)
    add("--format", default="auto", choices=FORMATS)
    text = "join subwords first, if the hypotheses still hold subwords"
    add("--remove-bpe", choices=tuple(BPE_MARKS), help=text)
    text = "require BLEU with split compounds (default for German, an error for other languages)"
    add("--compound-split", action="store_true", help=text)
    text = (
        "SYMBOL separates sentences in a line (floater documents): score each, and by position; --scores "
        "and --lines then have one line a sentence"
    )
    add("--documents", metavar="SYMBOL", help=text)
    text = "a label for the signatures; for wmt14 and wmt14/full the number of lines is checked"
    add("--test-set", metavar="NAME", help=text)
    text = "scores of another metric (COMET), one a line in the order of the references"
    add("--scores", dest="scores_path", metavar="FILE", help=text)
    text = "write the hypotheses to FILE, one a line in the order of the references"
    add("--lines", dest="lines_path", metavar="FILE", help=text)
    text = "signature of the model that translated, for the JSON"
    add("--system", metavar="SIGNATURE", help=text)
    add_metric_options(parser)


def add_metric_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "also the share of hypotheses that equal their reference word for word"
    add("--exact-match", action="store_true", help=text)
    text = "sacreBLEU's tokenizer (its own choice for the target language: 13a, zh, ja-mecab, ko-mecab)"
    add("--tokenize", choices=TOKENIZERS, help=text)
    text = "bootstrap resamples for the intervals (1000; 0: no intervals)"
    add("--bootstrap", type=int, default=1000, metavar="N", help=text)
    add("--seed", type=int, default=12345, help="random seed of the resamples (12345)")
