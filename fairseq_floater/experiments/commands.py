"""Options that the commands of experiments share.

Exit codes: 0 done, 1 a failure, 2 bad usage, 75 another process is running it, 143 told to stop.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fairseq_floater.experiments.hardware import add_machine_options
from fairseq_floater.verbs import as_options

# A small model gains little from several threads. Trainings side by side use all cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
CONFIG_HELP = "configuration of an experiment: a YAML file as in configs/"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, and ``--work``, which :func:`work_of` reads."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG_HELP)
    text = "where everything goes (default: work/<name of CONFIG>)"
    parser.add_argument("--work", type=Path, metavar="DIR", help=text)


def work_of(args: argparse.Namespace) -> Path:
    return args.work or Path("work") / args.config.name.removesuffix(".yaml")


def seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be numbers with commas, but is {text}")
    numbers = [int(seed) for seed in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"must be different numbers, but is {text}")
    return numbers


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run that :func:`machines_from_args` and :func:`preparation_of` read."""
    add_node_options(parser)
    parser.add_argument(
        "--mirror", metavar="PLACE", help="URL or folder to take WMT14's archives from"
    )
    text = "for archives that are not the published ones of WMT14"
    parser.add_argument("--rehearsal", action="store_true", help=text)


def add_node_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the hardware, which :func:`machines_from_args` reads, and ``--dry-run``."""
    add_machine_options(parser)
    add = parser.add_argument
    text = "prefix that starts a command once on each node: 'srun --nodes=4 --ntasks-per-node=1'"
    add("--launch", default="", metavar="COMMAND", help=text)
    text = "one of the nodes and a free port, where all nodes meet"
    add("--rendezvous", default="", metavar="HOST:PORT", help=text)
    add("--dry-run", action="store_true", help="print every command, run none")


def preparation_of(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(as_options({"mirror": args.mirror or None, "rehearsal": args.rehearsal}))
