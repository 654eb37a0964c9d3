"""Write what a fine-tuned model answers, in the form that each benchmark asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.models.roberta import RobertaModel
from torch import Tensor

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.rebuild import task_options_of
from fairseq_floater.checkpoints.roberta_tasks import (
    batches,
    checked_state,
    lengths_of,
    load_model,
)
from fairseq_floater.errors import ReportError
from fairseq_floater.files import write_text
from fairseq_floater.records import read_json
from fairseq_floater.transformer.question_answering.answer import answer_questions
from fairseq_floater.transformer.question_answering.task import TASK as QUESTION_ANSWERING

# STS-B's scores are from 0 to 5; models are trained on a fifth of them.
_HIGHEST_SCORE = 5
_LETTERS = "ABCD"


@dataclass(frozen=True)
class Predictions:
    """The files that were written, and how many answers they hold."""

    checkpoint: str
    data: str
    split: str
    files: list[str]
    n: int

    def format_text(self) -> str:
        return (
            f"{self.n:,} predictions of {self.checkpoint} on {self.split}: {', '.join(self.files)}"
        )


class _Asked(NamedTuple):
    """What is to be predicted, by which model."""

    checkpoint: Path
    data: Path
    output: Path
    split: str
    batch_size: int


class _Benchmark(NamedTuple):
    """How a benchmark's answers come about.

    Attributes:
        task: fairseq's name of the task that the model was trained for.
        split: a file that each split has there, with the split's name for ``{}``.
        answer: returns the answers' number, and the text of each file to write.
    """

    task: str
    split: str
    answer: Callable[[_Asked, RobertaModel, Any], tuple[int, dict[Path, str]]]


def predict(
    checkpoint: Path,
    data: Path,
    output: Path,
    *,
    task: str,
    split: str = "valid",
    batch_size: int = 32,
) -> Predictions:
    """Answer every example of a split, in the order of the data.

    Args:
        checkpoint: of a model that was trained on the benchmark's task of fairseq's.
        data: of the benchmark's ``prepare``.
        output: for GLUE lines of index and label, or number for STS-B; for RACE and SQuAD JSON by
            question. SQuAD 2.0 also has the probabilities of no answer: ``.na.json`` for its suffix.
        task: one of :data:`BENCHMARKS`.
        split: of the data.
        batch_size: examples in a batch; SQuAD chooses its own.

    Raises:
        CheckpointError: the model was trained for another task or dictionary, or the data are missing.
    """
    benchmark = BENCHMARKS[task]
    trained = task_options_of(checked_state(checkpoint, data))
    name = trained.get("_name") or trained.get("task")
    if name != benchmark.task:
        raise CheckpointError(
            f"{checkpoint} was trained for the task {name}, but --task {task} needs one that was "
            f"trained for {benchmark.task}."
        )
    if not (data / benchmark.split.format(split)).is_file():
        raise CheckpointError(
            f"There is no {data / benchmark.split.format(split)}; `floater {task} prepare` makes it."
        )
    overrides = {"data": str(data), "no_shuffle": True}
    model, its_task = load_model(checkpoint, overrides=overrides)
    asked = _Asked(checkpoint, data, output, split, batch_size)
    number, files = benchmark.answer(asked, model, its_task)
    for path, text in files.items():
        write_text(path, text)
    return Predictions(str(checkpoint), str(data), split, [str(path) for path in files], number)


def _answer_glue(asked: _Asked, model: RobertaModel, task: Any) -> tuple[int, dict[Path, str]]:
    """Classify, or for a regression give numbers."""
    head = task.cfg.classification_head_name

    def score(batch: dict[str, Any]) -> Tensor:
        return _score(model, batch["net_input"], head)

    scores = _scores(asked, model, task, score)
    if task.cfg.regression_target:
        answers: Iterable[Any] = (_HIGHEST_SCORE * scores[:, 0]).tolist()
    else:
        dictionary = task.label_dictionary
        labels = dictionary.symbols[dictionary.nspecial : -1]  # fairseq adds `<mask>` here too
        if scores.shape[1] > len(labels):
            raise CheckpointError(
                f"{asked.checkpoint} tells {scores.shape[1]} classes apart, but "
                f"{asked.data / 'label'}/dict.txt has {len(labels)} labels."
            )
        answers = (labels[best] for best in scores.argmax(axis=1))
    names = _glue_indices(asked.data / f"references.{asked.split}.tsv", len(scores))
    lines = (f"{name}\t{answer}\n" for name, answer in zip(names, answers))
    return len(scores), {asked.output: "index\tprediction\n" + "".join(lines)}


def _glue_indices(path: Path, number: int) -> list[str]:
    """Return the official index of each example, which prepare has kept for splits with labels."""
    if not path.is_file():
        return [str(i) for i in range(number)]
    lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
    return _as_many([line.partition("\t")[0] for line in lines], number, path)


def _as_many(names: list[str], number: int, path: Path) -> list[str]:
    if len(names) != number:
        raise CheckpointError(
            f"{path} has {len(names):,} examples, but the data beside it {number:,}; prepare them anew."
        )
    return names


def _answer_race(asked: _Asked, model: RobertaModel, task: Any) -> tuple[int, dict[Path, str]]:
    """Choose one of four options."""
    path = asked.data / f"references.{asked.split}.json"
    try:
        names = list(read_json(path, dict))
    except (ReportError, OSError) as error:
        raise CheckpointError(
            f"{path} must name the questions, but cannot be read: {error}"
        ) from None
    head = getattr(task.args, "ranking_head_name", "sentence_classification_head")
    options = [f"net_input{i + 1}" for i in range(task.args.num_classes)]

    def score(batch: dict[str, Any]) -> Tensor:
        return torch.cat([_score(model, batch[option], head) for option in options], dim=1)

    scores = _scores(asked, model, task, score)
    answers = (_LETTERS[best] for best in scores.argmax(axis=1))
    by_name = dict(zip(_as_many(names, len(scores), path), answers))
    return len(by_name), {asked.output: json.dumps(by_name, indent=1) + "\n"}


def _score(model: RobertaModel, net_input: dict[str, Tensor], head: str) -> Tensor:
    """Return the logits of a head [B, classes]."""
    return model(**net_input, features_only=True, classification_head_name=head)[0]


@torch.no_grad()
def _scores(
    asked: _Asked, model: RobertaModel, task: Any, score: Callable[[dict[str, Any]], Tensor]
) -> np.ndarray:
    """Score every example of the split: float32 [examples, classes], in the order of the data.

    Args:
        asked: names the split and what messages say.
        model: in evaluation mode.
        task: of fairseq's, with the data.
        score: of a batch.
    """
    task.load_dataset(asked.split)
    dataset = task.dataset(asked.split)
    lengths = lengths_of(dataset)
    longest = int(lengths.max(initial=0))
    if longest > model.max_positions():
        raise CheckpointError(
            f"Example {int(lengths.argmax())} of {asked.split} in {asked.data} has {longest} tokens, but "
            f"{asked.checkpoint} takes {model.max_positions()}; prepare with --max-positions."
        )
    order = np.argsort(lengths, kind="stable")  # little padding
    device = next(model.parameters()).device
    scored = [
        score(batch).float().cpu().numpy()
        for batch in batches(dataset, order, asked.batch_size, device)
    ]
    scores = np.concatenate(scored)
    if not np.isfinite(scores).all():
        raise CheckpointError(f"{asked.checkpoint} gives scores that are not finite.")
    return scores[np.argsort(order, kind="stable")]


def _answer_squad(asked: _Asked, model: RobertaModel, task: Any) -> tuple[int, dict[Path, str]]:
    """Answer by spans, and for SQuAD 2.0 say how likely there is no answer."""
    answers = answer_questions(model, task, asked.split)
    files = {asked.output: json.dumps(answers.texts, ensure_ascii=False) + "\n"}
    if answers.no_answer is not None:
        # First: whoever finds the answers finds these too.
        files = {
            asked.output.with_suffix(".na.json"): json.dumps(answers.no_answer) + "\n",
            **files,
        }
    return len(answers.texts), files


BENCHMARKS = {
    "glue": _Benchmark("sentence_prediction", "input0/{}.idx", _answer_glue),
    "race": _Benchmark("sentence_ranking", "input0/{}.idx", _answer_race),
    "squad": _Benchmark(QUESTION_ANSWERING, "{}.jsonl", _answer_squad),
}
