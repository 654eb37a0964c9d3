"""Add the verb squad: its data and its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_floater.data.understanding import squad as preparation
from fairseq_floater.data.understanding.cli import add_subword_options, with_vocabulary
from fairseq_floater.evaluation.understanding.squad import score as scoring
from fairseq_floater.verbs import add_parts, add_verb


def add_squad(verbs: Any) -> None:
    """Add the verb with its parts."""
    parts = add_parts(verbs, "squad")
    _add_prepare(parts)
    _add_score(parts)


def _add_prepare(parts: Any) -> None:
    parser = add_verb(
        parts,
        "prepare",
        "floater squad prepare squad data/squad2 --data-version 2.0 --like data/mlm",
        with_vocabulary(preparation.prepare),
        summary="official files -> what --task floater_question_answering reads",
    )
    add = parser.add_argument
    add("raw", type=Path, metavar="RAW", help="the folder of train-v2.0.json, dev-v2.0.json")
    add("out", type=Path, metavar="OUT")
    add_subword_options(parser)
    text = "where RAW holds both"
    add("--data-version", dest="version", choices=tuple(preparation.PUBLISHED), help=text)
    for split in ("train", "valid"):
        text = f"of RAW, or a path: instead of the official {split} file"
        add(f"--{split}", type=Path, metavar="FILE", help=text)
    add("--force", action="store_true", help="replace OUT")


def _add_score(parts: Any) -> None:
    parser = add_verb(
        parts,
        "score",
        "floater squad score predictions.json --references dev-v2.0.json \\\n"
        "    --na-prob predictions.na.json --na-prob-thresh 0.5",
        scoring.score,
        summary="predictions against an official file: exact match and F1 as officially",
    )
    add = parser.add_argument
    add("predictions", type=Path, metavar="PREDICTIONS", help="JSON, {id: answer}")
    add(
        "--references",
        type=Path,
        required=True,
        metavar="FILE",
        help="in the official form: dev-v1.1.json",
    )
    text = "2.0: JSON, {id: how sure it is that there is no answer}; seeks the best threshold too"
    add("--na-prob", type=Path, metavar="FILE", help=text)
    text = "above it an answer counts as none (1: what the predictions say)"
    add("--na-prob-thresh", type=float, metavar="X", help=text)
