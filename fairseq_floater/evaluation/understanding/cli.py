"""Add the verbs glue, race and squad: preparation and scores of tasks of language understanding."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_floater.data.understanding import glue as glue_data
from fairseq_floater.data.understanding import race as race_data
from fairseq_floater.data.understanding import squad as squad_data
from fairseq_floater.data.understanding.cli import add_subword_options, with_vocabulary
from fairseq_floater.evaluation.understanding import glue, race, squad
from fairseq_floater.verbs import add_parts, add_verb, positive


def add_glue(verbs: Any) -> None:
    parts = add_parts(verbs, "glue")
    example = "floater glue prepare rte glue_data data/rte --like data/mlm"
    summary = "official files -> data of fairseq's sentence_prediction"
    prepare = add_verb(
        parts, "prepare", example, with_vocabulary(glue_data.prepare), summary=summary
    )
    _add_task(prepare)
    _add_folders(prepare, "folder with the task's folder, as in GLUE's archives: RAW/RTE/train.tsv")
    _add_length(prepare)

    example = "floater glue score rte predictions.tsv --references data/rte/references.valid.tsv"
    summary = "predictions (index, prediction) against references (index, label)"
    score = add_verb(parts, "score", example, glue.score, summary=summary)
    _add_task(score)
    _add_files(score)
    text = "predictions for MNLI's mismatched dev set"
    score.add_argument("--mismatched", type=Path, metavar="FILE", help=text)
    score.add_argument("--mismatched-references", type=Path, metavar="FILE")


def add_race(verbs: Any) -> None:
    parts = add_parts(verbs, "race")
    example = "floater race prepare RACE data/race --like data/mlm"
    summary = "official files -> data of fairseq's sentence_ranking (--num-classes 4)"
    prepare = add_verb(
        parts, "prepare", example, with_vocabulary(race_data.prepare), summary=summary
    )
    _add_folders(prepare, "folder with train, dev and test, each with middle and high")
    _add_length(prepare)
    text = "token limit of question and option, with symbols (128, or half of --max-positions)"
    prepare.add_argument("--max-option-length", type=positive, metavar="N", help=text)

    example = "floater race score predictions.json --references data/race/references.valid.json"
    summary = "answers {question: letter} against references: all, middle, high"
    _add_files(add_verb(parts, "score", example, race.score, summary=summary))


def add_squad(verbs: Any) -> None:
    parts = add_parts(verbs, "squad")
    example = "floater squad prepare squad data/squad2 --data-version 2.0 --like data/mlm"
    summary = "official files -> what --task floater_question_answering reads"
    prepare = add_verb(
        parts, "prepare", example, with_vocabulary(squad_data.prepare), summary=summary
    )
    _add_folders(prepare, "folder with train-v2.0.json, dev-v2.0.json")
    add = prepare.add_argument
    versions = tuple(squad_data.PUBLISHED)
    add("--data-version", dest="version", choices=versions, help="if RAW holds both")
    for split in ("train", "valid"):
        text = f"use this file of RAW, or this path, instead of the official {split} file"
        add(f"--{split}", type=Path, metavar="FILE", help=text)

    example = (
        "floater squad score predictions.json --references dev-v2.0.json \\\n"
        "    --na-prob predictions.na.json --na-prob-thresh 0.5"
    )
    summary = "predictions against an official file: official exact match and F1"
    score = add_verb(parts, "score", example, squad.score, summary=summary)
    _add_files(score, "JSON, {id: answer}", "in the official form: dev-v1.1.json")
    text = "2.0: JSON, {id: probability of no answer}; the best threshold is reported too"
    score.add_argument("--na-prob", type=Path, metavar="FILE", help=text)
    text = "above it, the question counts as unanswerable (1: the predictions decide)"
    score.add_argument("--na-prob-thresh", type=float, metavar="X", help=text)


def _add_task(parser: argparse.ArgumentParser) -> None:
    text = "CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI or RTE, in upper or lower case"
    parser.add_argument("task_name", metavar="TASK", help=text)


def _add_folders(parser: argparse.ArgumentParser, raw: str) -> None:
    add = parser.add_argument
    add("raw_dir", type=Path, metavar="RAW", help=raw)
    add("out_dir", type=Path, metavar="OUT")
    add_subword_options(parser)
    add("--force", action="store_true", help="replace OUT if it was made from other input")


def _add_length(parser: argparse.ArgumentParser) -> None:
    text = "token limit of the model; longer examples are cut but keep end symbols (512)"
    parser.add_argument("--max-positions", type=positive, default=512, metavar="N", help=text)


def _add_files(
    parser: argparse.ArgumentParser, predictions: str | None = None, references: str | None = None
) -> None:
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help=predictions)
    parser.add_argument("--references", type=Path, required=True, metavar="FILE", help=references)
