"""Describe GLUE's eight tasks (Wang et al., 2019): files, columns, labels, sizes and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairseq_floater.errors import UsageError

#: STS-B's scores are from 0 to 5. Models are trained on the scores divided by 5.
HIGHEST_SCORE = 5
_BINARY = ("0", "1")
_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_TRAIN_DEV = {"train": "train.tsv", "valid": "dev.tsv"}


@dataclass(frozen=True)
class GlueTask:
    """One task, in the official files of 2018 and 2019.

    ``labels`` are in the order of the classes; a regression has none. ``sizes`` are the published
    numbers of examples. ``columns`` names the columns of files without header. ``f1`` says whether F1
    of class 1 is reported beside the ``metric``.
    """

    name: str
    inputs: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    sizes: dict[str, int]
    files: dict[str, str] = field(default_factory=lambda: dict(_TRAIN_DEV))
    metric: str = "accuracy"
    columns: tuple[str, ...] = ()
    f1: bool = False
    skips_broken_lines: bool = False


_ALL = (
    GlueTask(
        "CoLA",
        ("sentence",),
        "label",
        _BINARY,
        {"train": 8_551, "valid": 1_043},
        metric="matthews",
        columns=("source", "label", "mark", "sentence"),
    ),
    GlueTask("SST-2", ("sentence",), "label", _BINARY, {"train": 67_349, "valid": 872}),
    GlueTask(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        _BINARY,
        {"train": 3_668, "valid": 408},
        f1=True,
    ),
    GlueTask(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        _BINARY,
        {"train": 363_846, "valid": 40_430},
        f1=True,
        skips_broken_lines=True,  # the published sizes are without them
    ),
    GlueTask("STS-B", _PAIR, "score", (), {"train": 5_749, "valid": 1_500}, metric="pearson"),
    GlueTask(
        "MNLI",
        _PAIR,
        "gold_label",
        ("contradiction", "neutral", "entailment"),
        {"train": 392_702, "valid": 9_815, "valid1": 9_832},
        {"train": "train.tsv", "valid": "dev_matched.tsv", "valid1": "dev_mismatched.tsv"},
    ),
    GlueTask(
        "QNLI", ("question", "sentence"), "label", _ENTAILMENT, {"train": 104_743, "valid": 5_463}
    ),
    GlueTask("RTE", _PAIR, "label", _ENTAILMENT, {"train": 2_490, "valid": 277}),
)
GLUE_TASKS = {task.name.lower(): task for task in _ALL}


def glue_task(name: str) -> GlueTask:
    """Return a task by its name, in upper or lower case; raises UsageError if it is unknown."""
    if name.lower() not in GLUE_TASKS:
        names = ", ".join(task.name for task in _ALL)
        raise UsageError(f"`TASK` must be one of {names}, but is {name!r}.")
    return GLUE_TASKS[name.lower()]
