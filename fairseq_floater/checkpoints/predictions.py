"""Write a fine-tuned model's answers in the format of each benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.models.roberta import RobertaModel

from fairseq_floater.checkpoints.dictionaries import task_options_of
from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_floater.checkpoints.roberta_tasks import (
    batches,
    check_state,
    lengths_of,
    load_model,
)
from fairseq_floater.files import write_text
from fairseq_floater.records import read_json
from fairseq_floater.transformer.question_answering.answer import answer_questions
from fairseq_floater.transformer.question_answering.task import TASK as QUESTION_ANSWERING

# STS-B's scores are from 0 to 5. Models are trained on the scores divided by 5.
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


class _Request(NamedTuple):
    checkpoint: Path
    data: Path
    output: Path
    split: str
    batch_size: int


class _Benchmark(NamedTuple):
    """How to answer a benchmark.

    Attributes:
        task: fairseq's name of the task that the model was trained for.
        split: path of a file that every split has; ``{}`` stands for the split's name.
        answer: returns the number of answers, and the text of each file to write.
    """

    task: str
    split: str
    answer: Callable[[_Request, RobertaModel, Any], tuple[int, dict[Path, str]]]


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
        checkpoint: of a model that was trained on fairseq's task for the benchmark.
        data: the folder that the benchmark's ``prepare`` wrote.
        output: GLUE: lines of index and label (STS-B: a number); RACE and SQuAD: JSON by question.
            SQuAD 2.0 also gets the probabilities of no answer, in a file with the suffix ``.na.json``.
        task: one of :data:`BENCHMARKS`.
        split: of the data.
        batch_size: examples in a batch; SQuAD ignores it.

    Raises:
        CheckpointError: the model was trained for another task or dictionary, or the data are missing.
    """
    benchmark = BENCHMARKS[task]
    state = load_checkpoint(checkpoint)
    check_state(state, checkpoint, data)
    trained = task_options_of(state)
    name = trained.get("_name") or trained.get("task")
    if name != benchmark.task:
        raise CheckpointError(
            f"{checkpoint} was trained for the task {name}, but --task {task} needs one that was "
            f"trained for {benchmark.task}."
        )
    file = data / benchmark.split.format(split)
    if not file.is_file():
        raise CheckpointError(f"There is no {file}; `floater {task} prepare` makes it.")
    overrides = {"data": str(data), "no_shuffle": True}
    model, trained_task = load_model(checkpoint, overrides)
    request = _Request(checkpoint, data, output, split, batch_size)
    number, files = benchmark.answer(request, model, trained_task)
    for path, text in files.items():
        write_text(path, text)
    return Predictions(str(checkpoint), str(data), split, [str(path) for path in files], number)


def _answer_glue(request: _Request, model: RobertaModel, task: Any) -> tuple[int, dict[Path, str]]:
    scores = _scores(request, model, task, ["net_input"], task.cfg.classification_head_name)
    if task.cfg.regression_target:
        answers: Iterable[Any] = (_HIGHEST_SCORE * scores[:, 0]).tolist()
    else:
        dictionary = task.label_dictionary
        labels = dictionary.symbols[dictionary.nspecial : -1]  # fairseq adds `<mask>` here too
        if scores.shape[1] > len(labels):
            raise CheckpointError(
                f"{request.checkpoint} tells {scores.shape[1]} classes apart, but "
                f"{request.data / 'label'}/dict.txt has {len(labels)} labels."
            )
        answers = (labels[best] for best in scores.argmax(axis=1))
    path = request.data / f"references.{request.split}.tsv"
    names = [str(i) for i in range(len(scores))]
    if path.is_file():  # prepare has kept the official indices of splits with labels
        lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
        names = _checked_names([line.partition("\t")[0] for line in lines], len(scores), path)
    rows = (f"{name}\t{answer}\n" for name, answer in zip(names, answers))
    return len(scores), {request.output: "index\tprediction\n" + "".join(rows)}


def _answer_race(request: _Request, model: RobertaModel, task: Any) -> tuple[int, dict[Path, str]]:
    path = request.data / f"references.{request.split}.json"
    if not path.is_file():
        raise CheckpointError(f"There is no {path}, which must name the questions.")
    names = list(read_json(path, dict))
    head = getattr(task.args, "ranking_head_name", "sentence_classification_head")
    inputs = [f"net_input{i + 1}" for i in range(task.args.num_classes)]
    scores = _scores(request, model, task, inputs, head)
    answers = (_LETTERS[best] for best in scores.argmax(axis=1))
    by_name = dict(zip(_checked_names(names, len(scores), path), answers))
    return len(by_name), {request.output: json.dumps(by_name, indent=1) + "\n"}


def _checked_names(names: list[str], number: int, path: Path) -> list[str]:
    if len(names) != number:
        raise CheckpointError(
            f"{path} has {len(names):,} examples, but the data beside it {number:,}; prepare them again."
        )
    return names


@torch.no_grad()
def _scores(
    request: _Request, model: RobertaModel, task: Any, inputs: Sequence[str], head: str
) -> np.ndarray:
    """Score every example of the split: float32 [examples, classes], in the order of the data.

    Args:
        request: the split, and the paths for messages.
        model: in evaluation mode.
        task: fairseq's task, which loads the data.
        inputs: keys of a batch; the logits of these inputs are concatenated along the classes.
        head: name of the model's classification head.
    """
    task.load_dataset(request.split)
    dataset = task.dataset(request.split)
    lengths = lengths_of(dataset)
    longest = int(lengths.max(initial=0))
    if longest > model.max_positions():
        raise CheckpointError(
            f"Example {int(lengths.argmax())} of {request.split} in {request.data} has {longest} tokens, "
            f"but {request.checkpoint} takes {model.max_positions()}; prepare with --max-positions."
        )
    order = np.argsort(lengths, kind="stable")  # little padding
    options = {"features_only": True, "classification_head_name": head}
    scored = []
    for batch in batches(dataset, order, request.batch_size, model):
        logits = [model(**batch[name], **options)[0] for name in inputs]
        scored.append(torch.cat(logits, dim=1).float().cpu().numpy())
    scores = np.concatenate(scored)
    if not np.isfinite(scores).all():
        raise CheckpointError(f"{request.checkpoint} gives scores that are not finite.")
    return scores[np.argsort(order, kind="stable")]


def _answer_squad(request: _Request, model: RobertaModel, task: Any) -> tuple[int, dict[Path, str]]:
    answers = answer_questions(model, task, request.split)
    files = {request.output: json.dumps(answers.texts, ensure_ascii=False) + "\n"}
    if answers.no_answer is not None:
        # Written first, so that the answers never exist without these probabilities.
        probabilities = request.output.with_suffix(".na.json")
        files = {probabilities: json.dumps(answers.no_answer) + "\n", **files}
    return len(answers.texts), files


BENCHMARKS = {
    "glue": _Benchmark("sentence_prediction", "input0/{}.idx", _answer_glue),
    "race": _Benchmark("sentence_ranking", "input0/{}.idx", _answer_race),
    "squad": _Benchmark(QUESTION_ANSWERING, "{}.jsonl", _answer_squad),
}
