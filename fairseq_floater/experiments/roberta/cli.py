"""Add the verbs of experiments with RoBERTa."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_floater.experiments.roberta import cells, commands
from fairseq_floater.verbs import add_verb


def add_run_tables345(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "run-tables345",
        "bash scripts/tables345.sh --config configs/roberta_tiny.yaml --work work/tiny --seeds 1,2",
        lambda **options: cells.run(argparse.Namespace(**options)),
        details="38 cells under five seeds each, one run after the other. Text, data, donor and flow "
        "stage are\nmade by the first that needs them. A run that another process is at is left to it, "
        "a finished\nrun is skipped. Ends with the table beside the paper's numbers.",
        json=False,
    )
    cells.add_options(parser)


def add_pretrain_flow(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "pretrain-flow",
        "bash scripts/pretrain_flow.sh configs/roberta_base.yaml --donor roberta_base.pt",
        lambda **options: commands.run(argparse.Namespace(**options)),
        details="Makes text and donor of CONFIG where they are missing, warm-starts the encoder from the "
        "donor,\ntrains it by masked LM (FLOATER: h alone, another encoder: all parameters), and prints "
        "the loss by\ntoken position before and after. A killed run goes on where it was.",
        json=False,
    )
    commands.add_flow_options(parser)


def add_finetune(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "finetune",
        "bash scripts/finetune.sh configs/roberta_base.yaml --task rte --system floater \\\n"
        "    --raw raw --donor base.pt",
        lambda **options: commands.run(argparse.Namespace(**options)),
        details="Makes the data of the task, and what the system starts from, where they are missing; "
        "fine-tunes by\nthe recipe of CONFIG, predicts with the chosen checkpoint, scores. A killed run "
        "goes on where it was.\nThe batch is the recipe's on any number of GPUs that divides it.",
        json=False,
    )
    commands.add_finetune_options(parser)
