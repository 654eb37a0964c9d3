"""Declare the verbs of `floater`: names, help, types of options."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.errors import UsageError


class Verb(NamedTuple):
    """A verb's summary, and the module whose function ``add_<verb>`` adds its parser."""

    summary: str
    module: str


# Only the chosen verb's module is imported: torch and fairseq take seconds, and most verbs need neither.
VERBS = {
    "user-dir": Verb("print the folder for fairseq's --user-dir", "data.cli"),
    "info": Verb(
        "versions, device, and the encoders with their parameters and Table 1's properties; "
        "with --check, what is missing",
        "experiments.cli",
    ),
    "numbers": Verb(
        "the built-in corpus: real number words in two languages, exact references", "data.cli"
    ),
    "mlm": Verb(
        "text for masked language modelling: subwords, dictionary, binarised data",
        "data.understanding.cli",
    ),
    "quizzes": Verb(
        "a built-in stand-in for RoBERTa's data: masked-LM text, GLUE, RACE and SQuAD in their "
        "official formats, questions on the order of number words",
        "data.cli",
    ),
    "tasks": Verb(
        "SCAN by length, and generated tasks (addition, reverse, ...), as text of whole words",
        "data.cli",
    ),
    "args": Verb(
        "the exact fairseq arguments of a stage of an experiment, one a line", "experiments.cli"
    ),
    "run": Verb(
        "one system of an experiment through the paper's protocol: data, donor, warm start, "
        "training, average, translations, scores (scripts/protocol.sh)",
        "experiments.cli",
    ),
    "run-compare": Verb(
        "several systems under several seeds, with intervals, p-values and ranks "
        "(scripts/compare.sh)",
        "experiments.cli",
    ),
    "run-s2l": Verb(
        "short to long: split by length, train on the short part, score by bins (scripts/s2l.sh)",
        "experiments.cli",
    ),
    "run-demo": Verb(
        "five systems on the built-in corpus: a table, a figure and a page (scripts/demo.sh)",
        "experiments.cli",
    ),
    "run-tasks": Verb(
        "several systems on SCAN and generated tasks, exact match by length beside published numbers "
        "(scripts/tasks.sh)",
        "experiments.cli",
    ),
    "run-table2": Verb(
        "Table 2 of the paper, 24 cells of WMT14 (scripts/table2.sh)", "experiments.cli"
    ),
    "run-tables345": Verb(
        "Tables 3 to 5 of the paper: GLUE, RACE and SQuAD with RoBERTa (scripts/tables345.sh)",
        "experiments.roberta.cli",
    ),
    "pretrain-flow": Verb(
        "train a position encoder in a pretrained RoBERTa by masked LM (scripts/pretrain_flow.sh)",
        "experiments.roberta.cli",
    ),
    "finetune": Verb(
        "one fine-tuning on GLUE, RACE or SQuAD, its predictions and scores (scripts/finetune.sh)",
        "experiments.roberta.cli",
    ),
    "prepare": Verb(
        "raw parallel text -> subwords and binarised data (scripts/prepare_text.sh)", "data.cli"
    ),
    "documents": Verb("neighbouring lines of a parallel text, joined into documents", "data.cli"),
    "wmt14": Verb("the steps of scripts/prepare_wmt14.sh, which also downloads", "data.cli"),
    "import-roberta": Verb(
        "a RoBERTa or BERT of Hugging Face, or fairseq's of 2019 -> a fairseq checkpoint",
        "checkpoints.cli",
    ),
    "import-translation": Verb(
        "a Marian of Hugging Face -> a fairseq checkpoint that gives the same translations",
        "checkpoints.cli",
    ),
    "warm-start": Verb(
        "a checkpoint of a Transformer or RoBERTa -> one with another position encoder, to train further",
        "checkpoints.cli",
    ),
    "average": Verb("the mean of several checkpoints", "checkpoints.cli"),
    "predict": Verb(
        "the answers of a fine-tuned model on GLUE, RACE or SQuAD, in the official forms",
        "checkpoints.cli",
    ),
    "position-loss": Verb(
        "loss and accuracy of a model by position of the predicted token",
        "checkpoints.cli",
    ),
    "score": Verb(
        "hypotheses (fairseq-generate's output or plain lines) against raw references",
        "evaluation.cli",
    ),
    "s2l": Verb(
        "short to long: split parallel text by source length, score bin by bin",
        "evaluation.s2l.cli",
    ),
    "compare": Verb(
        "runs of one or more systems, several seeds of each, on whole test sets: means, "
        "differences, p-values",
        "evaluation.s2l.cli",
    ),
    "glue": Verb(
        "GLUE: official files -> data of fairseq's task sentence_prediction; predictions -> scores",
        "evaluation.understanding.cli",
    ),
    "race": Verb(
        "RACE: official files -> data of fairseq's task sentence_ranking; predictions -> scores",
        "evaluation.understanding.cli",
    ),
    "squad": Verb(
        "SQuAD 1.1 and 2.0: official files -> data of this package's task; answers -> official scores",
        "evaluation.understanding.cli",
    ),
    "table": Verb(
        "the scores of all systems below a folder, as a table and a figure; or the paper's tables",
        "results.cli",
    ),
    "plot": Verb("figures of models", "results.cli"),
    "page": Verb(
        "a comparison as one page that needs no network: tables, curves, positions, translations",
        "results.cli",
    ),
    "benchmark": Verb("how to run the benchmarks", "data.cli"),
}


def add_verb(
    verbs: Any,
    name: str,
    example: str,
    run: Callable[..., Any],
    summary: str | None = None,
    unknown: str | None = None,
    details: str = "",
    json: bool = True,
) -> argparse.ArgumentParser:
    """Add a verb with help and an example; returns its parser, to which options are added.

    Args:
        verbs: the subparsers to add to.
        name: the verb, or the part of a verb.
        example: shown below the help.
        run: called with every option as a keyword, so that an option's ``dest`` is a parameter's name.
        summary: the summary of a part of a verb. The summaries of verbs are in :data:`VERBS`.
        unknown: the parameter of ``run`` that takes unknown words (options of models); None refuses them.
        details: further help, shown below the summary.
        json: whether the verb has a result, which ``--json FILE`` writes.
    """
    summary = VERBS[name].summary if summary is None else summary
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary}\n{details}".rstrip(),
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, unknown=unknown, usage=parser)
    if json:
        parser.add_argument("--json", metavar="FILE", help="write the result as JSON as well")
    else:
        parser.set_defaults(json=None)
    return parser


def from_options(run: Callable[[argparse.Namespace], Any]) -> Callable[..., Any]:
    """Return the ``run`` of :func:`add_verb` for a function that takes one Namespace of all options."""
    return lambda **options: run(argparse.Namespace(**options))


def add_parts(verbs: Any, name: str) -> Any:
    """Add a verb that has parts, and return the subparsers for its parts."""
    summary = VERBS[name].summary
    epilog = f"`floater {name} PART --help` shows the options of a part and an example."
    parser = verbs.add_parser(name, help=summary, description=summary, epilog=epilog)
    return parser.add_subparsers(dest="part", required=True, metavar="PART")


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, but is {text!r}")
    return int(text)


def positives(text: str) -> list[int]:
    """Parse whole numbers of at least 1, separated by commas."""
    return [positive(number) for number in text.split(",")]


def shell_words(option: str, text: str) -> list[str]:
    """Return the words of an option's value, as a shell reads them.

    Raises:
        UsageError: an unclosed quote.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"`{option}` must be valid in a shell, but is {text!r}: {error}."
        ) from None


def share(text: str) -> float:
    """Parse a share above 0 and at most 1."""
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, but is {text!r}")
    return float(text)


def as_options(values: Mapping[str, Any], *, list_of_words: bool = False) -> list[str]:
    """Return ``{"dropout": 0.1, "share-all-embeddings": True}`` as options; False and None are left out.

    A list has commas, as fairseq reads it; with ``list_of_words``, each of its values is a word.
    """
    options = []
    for name, value in values.items():
        if value is False or value is None:
            continue
        options.append(f"--{name}")
        if value is not True:
            texts = [*map(str, value)] if isinstance(value, list) else [str(value)]
            options += texts if list_of_words else [",".join(texts)]
    return options


def as_path(path: str | Path) -> str:
    """Return a path in a form that no command takes for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def dashed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` by the names of their options: ``max-len`` for ``max_len``."""
    return {name.replace("_", "-"): value for name, value in values.items()}
