"""Add the verbs glue and race: preparation and scores of tasks of language understanding."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_floater.data.understanding import glue as glue_data
from fairseq_floater.data.understanding import race as race_data
from fairseq_floater.data.understanding.cli import add_subword_options, with_vocabulary
from fairseq_floater.evaluation.understanding import glue as glue_score
from fairseq_floater.evaluation.understanding import race as race_score
from fairseq_floater.verbs import add_parts, add_verb, positive


def add_glue(verbs: Any) -> None:
    """Add the verb with its parts."""
    parts = add_parts(verbs, "glue")
    task = "CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI or RTE, in any case"
    example = "floater glue prepare rte glue_data data/rte --like data/mlm"
    summary = "official files -> data of fairseq's sentence_prediction"
    parser = add_verb(
        parts, "prepare", example, with_vocabulary(glue_data.prepare), summary=summary
    )
    parser.add_argument("task_name", metavar="TASK", help=task)
    text = "holds the task's folder, as in GLUE's archives: RAW/RTE/train.tsv"
    _add_preparation_options(parser, text)

    example = "floater glue score rte predictions.tsv --references data/rte/references.valid.tsv"
    summary = "predictions (index, prediction) against references (index, label)"
    parser = add_verb(parts, "score", example, glue_score.score, summary=summary)
    add = parser.add_argument
    add("task_name", metavar="TASK", help=task)
    add("predictions", type=Path, metavar="PREDICTIONS")
    add("--references", type=Path, required=True, metavar="FILE")
    add("--mismatched", type=Path, metavar="FILE", help="predictions on MNLI's other dev set")
    add("--mismatched-references", type=Path, metavar="FILE")


def add_race(verbs: Any) -> None:
    """Add the verb with its parts."""
    parts = add_parts(verbs, "race")
    example = "floater race prepare RACE data/race --like data/mlm"
    summary = "official files -> data of fairseq's sentence_ranking (--num-classes 4)"
    parser = add_verb(
        parts, "prepare", example, with_vocabulary(race_data.prepare), summary=summary
    )
    _add_preparation_options(parser, "holds train, dev and test, each with middle and high")
    text = "tokens of question and option with the symbols around them (128, or half of all)"
    parser.add_argument("--max-option-length", type=positive, metavar="N", help=text)

    example = "floater race score predictions.json --references data/race/references.valid.json"
    summary = "answers {question: letter} against references: all, middle, high"
    parser = add_verb(parts, "score", example, race_score.score, summary=summary)
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS")
    parser.add_argument("--references", type=Path, required=True, metavar="FILE")


def _add_preparation_options(parser: argparse.ArgumentParser, raw: str) -> None:
    add = parser.add_argument
    add("raw_dir", type=Path, metavar="RAW", help=raw)
    add("out_dir", type=Path, metavar="OUT")
    add_subword_options(parser)
    text = "tokens that the model takes; longer examples are shortened, end symbols kept (512)"
    add("--max-positions", type=positive, default=512, metavar="N", help=text)
    add("--force", action="store_true", help="replace OUT, where it was made of other input")
