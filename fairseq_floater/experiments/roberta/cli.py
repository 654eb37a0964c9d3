"""Add the verbs of experiments with RoBERTa."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.commands import CONFIG_HELP
from fairseq_floater.experiments.hardware import use_gpus
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.roberta import cells
from fairseq_floater.experiments.roberta.cells import add_run_options, add_work, request_of
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.roberta.finetuning import FineTuning
from fairseq_floater.experiments.roberta.protocol import MaskedLmJob
from fairseq_floater.experiments.roberta.stages import ROBERTA, RobertaExperiment
from fairseq_floater.experiments.system import PLAIN, add_model_options, system_from_args
from fairseq_floater.verbs import add_verb, from_options


def add_run_tables345(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "run-tables345",
        "bash scripts/tables345.sh --config configs/roberta_tiny.yaml --work work/tiny --seeds 1,2",
        from_options(cells.run),
        details="38 cells under five seeds each, one run after the other. Text, data, donor and flow "
        "stage are\nmade by the first run that needs them. Runs that are finished, or in progress, "
        "are\nskipped. Ends with the table beside the paper's numbers.",
        json=False,
    )
    cells.add_options(parser)


def add_pretrain_flow(verbs: Any) -> None:
    parser = _add_single_run(
        verbs,
        "pretrain-flow",
        "bash scripts/pretrain_flow.sh configs/roberta_base.yaml --donor roberta_base.pt",
        "Makes text and donor of CONFIG if they are missing, warm-starts the encoder from the "
        "donor,\ntrains it by masked LM (FLOATER: only h, another encoder: all parameters), and prints "
        "the loss by\ntoken position before and after. A killed run continues where it stopped.",
    )
    add_model_options(parser, "--encoder", ())
    add_run_options(parser)


def add_finetune(verbs: Any) -> None:
    parser = _add_single_run(
        verbs,
        "finetune",
        "bash scripts/finetune.sh configs/roberta_base.yaml --task rte --system floater \\\n"
        "    --raw raw --donor base.pt",
        "Makes the data of the task, and the model to start from, if they are missing; "
        "fine-tunes by\nthe recipe of CONFIG, predicts with the chosen checkpoint, scores. A killed run "
        "continues where it stopped.\nThe batch has the recipe's size; the number of GPUs must divide it.",
    )
    text = f"a task of CONFIG: {', '.join(TASKS)}"
    parser.add_argument("--task", required=True, metavar="T", help=text)
    text = "seed of fine-tuning (default: the configuration's)"
    parser.add_argument("--seed", type=int, metavar="N", help=text)
    add_model_options(parser, "--system", (ROBERTA,), required=True)
    add_run_options(parser)


def _add_single_run(verbs: Any, name: str, example: str, details: str) -> argparse.ArgumentParser:
    run = from_options(_run)
    parser = add_verb(verbs, name, example, run, details=details, json=False)
    parser.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG_HELP)
    add_work(parser)
    text = "how to fill the donor's table up to --max-positions: repeat all rows (tile) or the last one"
    parser.add_argument("--extend", choices=("tile", "last"), help=text)
    return parser


def _run(args: argparse.Namespace) -> None:
    """Run the masked-LM stage, or the fine-tuning if the command line names a task."""
    args.encoder = PLAIN if args.encoder == ROBERTA else args.encoder
    experiment, system = RobertaExperiment(args.config), system_from_args(args)
    if args.extend and args.encoder == PLAIN:
        raise UsageError(f"`--extend` is for warm starts, but `--system {ROBERTA}` makes none.")
    task, seed = getattr(args, "task", None), getattr(args, "seed", None)
    request = request_of(args, experiment, system, donor=args.donor, seed=seed)
    gpus = use_gpus(request.machines, dry_run=args.dry_run)
    launcher = Launcher(dry_run=args.dry_run, job_environments=gpus)
    job = FineTuning(request, task, launcher) if task else MaskedLmJob(request, launcher)
    with launcher.signals():
        job.run()
