"""Score predictions on a task of GLUE by scikit-learn's metrics, and SciPy's correlations."""

from __future__ import annotations

import math
from pathlib import Path

from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fairseq_floater.data.understanding.glue_tasks import GlueTask, glue_task
from fairseq_floater.errors import ReportError, UsageError, say, shown
from fairseq_floater.evaluation.understanding.answers import Scores, check_ids, read_table


def score(
    task_name: str,
    predictions: Path,
    references: Path,
    *,
    mismatched: Path | None = None,
    mismatched_references: Path | None = None,
) -> Scores:
    """Score a file of predictions; the field ``score`` is the metric of the paper's Table 3.

    Args:
        predictions: ``index<TAB>prediction``, in any order; labels as words, numbers for STS-B.
        references: ``index<TAB>label``, as ``floater glue prepare`` writes them.
        mismatched, mismatched_references: the same two for MNLI's mismatched dev set.

    Raises:
        UsageError: the task is not one of GLUE's or has no mismatched set, or one file of it is missing.
        ReportError: an index is missing, duplicate or unknown, or a label is unknown.
    """
    task = glue_task(task_name)
    if (mismatched is None) != (mismatched_references is None):
        raise UsageError("`--mismatched` needs --mismatched-references, and the other way round.")
    if mismatched is not None and len(task.files) < 3:
        raise UsageError(f"`--mismatched` is for MNLI, but the task is {task.name}.")
    further = _metrics(task, predictions, references)
    main, size = further.pop(task.metric), further.pop("n")
    if mismatched is not None and mismatched_references is not None:
        other = _metrics(task, mismatched, mismatched_references)
        further |= {"mismatched": other[task.metric], "n_mismatched": other["n"]}
    table = [task.name]
    for name, value in {task.metric: main, "examples": size, **further}.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
        table.append(f"{name:<20}{text:>10}")
    common = {"task": task.name, "metric": task.metric, "score": main}
    return Scores({**common, **further, "n": size}, table)


def _metrics(task: GlueTask, predictions: Path, references: Path) -> dict[str, float]:
    """Return every metric of a task in per cent, and the number of examples ``n``."""
    answers, right = read_table(predictions, "prediction"), read_table(references, "label")
    check_ids(answers, right, (predictions, references))
    given = [_value(task, answers[index], index, predictions) for index in right]
    wanted = [_value(task, label, index, references) for index, label in right.items()]
    if task.labels:
        values = {"accuracy": accuracy_score(wanted, given)}
        if task.metric == "matthews":
            values["matthews"] = matthews_corrcoef(wanted, given)
        if task.f1:
            values["f1"] = f1_score(wanted, given, zero_division=0)
    elif len({*given}) < 2 or len({*wanted}) < 2:
        say(f"warning: all scores of {predictions} or {references} are equal: no correlation.")
        values = {"pearson": 0, "spearman": 0}
    else:
        values = {"pearson": pearsonr(wanted, given)[0], "spearman": spearmanr(wanted, given)[0]}
    return {"n": len(wanted)} | {name: 100 * float(value) for name, value in values.items()}


def _value(task: GlueTask, text: str, index: str, path: Path) -> float:
    """Return the number of a label's class, or the score of a regression."""
    try:
        value = task.labels.index(text) if task.labels else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        rule = f"one of {', '.join(task.labels)}" if task.labels else "a number"
        raise ReportError(f"{path}, {shown(index)}: must be {rule}, but is {shown(text)}.")
    return value
