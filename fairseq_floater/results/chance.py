"""Tell what guessing scores on a task: the level that a result has to be above."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fairseq_floater.data.understanding import glue_tasks, race, squad
from fairseq_floater.experiments.roberta.config import TASKS


def published_size(task: str) -> int:
    """Return the published number of examples of the set that the paper's tables are of."""
    kind = TASKS[task]
    if kind.family == "glue":
        return glue_tasks.glue_task(task).sizes["valid"]
    if kind.family == "race":
        return race.PUBLISHED[kind.splits[0]]
    return squad.PUBLISHED[kind.version]["valid"]


def chance_level(data: Path, task: str) -> float | None:
    """Return the score of the most frequent answer in per cent, 0 for a correlation.

    Args:
        data: the prepared task; None is returned where its references are gone.
        task: one of :data:`fairseq_floater.experiments.roberta.config.TASKS`.

    SQuAD's is that of answering nothing.
    """
    kind = TASKS[task]
    path = data / f"references.{kind.splits[0]}.{kind.ending}"
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    if kind.family == "glue":
        if glue_tasks.glue_task(task).metric != "accuracy":
            return 0.0
        return _share(line.rpartition("\t")[2] for line in text.splitlines()[1:])
    if kind.family == "race":
        return _share(question["answer"] for question in json.loads(text).values())
    articles = json.loads(text)["data"]
    questions = [q for article in articles for p in article["paragraphs"] for q in p["qas"]]
    return 100 * sum(not q["answers"] for q in questions) / len(questions)


def _share(answers: Iterable[str]) -> float:
    [(_, most)] = (counts := Counter(answers)).most_common(1)
    return 100 * most / counts.total()
