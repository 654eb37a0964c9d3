"""What the command lines of experiments share: parsing, checks, and exit codes.

Exit codes: 0 done, 1 a failure, 2 bad usage, 75 another process is at work on it, 143 told to stop.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_floater.errors import UsageError, UserError, one_line, sentence
from fairseq_floater.experiments.hardware import (
    Machines,
    add_machine_options,
    machines_from_args,
    visible_gpus,
)
from fairseq_floater.experiments.stages import Experiment


def run_command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None,
) -> int:
    """Parse a command line and run it; return the exit code."""
    args = parser.parse_args(argv)
    try:
        return run(args) or 0
    except (UserError, OSError) as error:
        print(one_line(sentence(error)), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the argument that :func:`experiment_from_args` reads."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="an experiment's YAML")


def experiment_from_args(args: argparse.Namespace) -> Experiment:
    """Return the checked configuration of a command line."""
    if args.config is None:
        raise UsageError("a CONFIG is needed.")
    if not Path(args.config).is_file():
        raise UserError(f"There is no configuration {args.config}.")
    return Experiment(args.config)


def work_of(args: argparse.Namespace) -> Path:
    """Return the folder of an experiment: ``--work``, or ``work/<name of CONFIG>``."""
    return Path(args.work or Path("work") / Path(args.config).name.removesuffix(".yaml"))


def seeds_of(text: str) -> list[int]:
    """Return the numbers of ``--seeds 1,2,3``."""
    if not re.fullmatch(r"\d+(,\d+)*", text, re.ASCII):
        raise UsageError(f"--seeds must be numbers with commas, but is {text}.")
    return [int(seed) for seed in text.split(",")]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run that :func:`machines_of` and :func:`preparation_of` read."""
    add_machine_options(parser, processes=None)
    parser.add_argument("--launch", default="", metavar="COMMAND", help="starts words on each node")
    parser.add_argument("--rendezvous", default="", metavar="HOST:PORT", help="of one of them")
    parser.add_argument("--mirror", metavar="PLACE", help="of prepare_wmt14.sh")
    parser.add_argument("--rehearsal", action="store_true", help="of prepare_wmt14.sh")
    parser.add_argument("--dry-run", action="store_true", help="print every command, run none")


def machines_of(args: argparse.Namespace) -> Machines:
    """Return what to train on: all GPUs of this machine unless told otherwise.

    Raises:
        UsageError: numbers that make no sense, or nodes that cannot be started or find each other.
    """
    if args.processes is None:
        args.processes = len(visible_gpus())
    machines = machines_from_args(args)
    if machines.nodes > 1 and not (args.launch and args.rendezvous):
        raise UsageError(f"--nodes {machines.nodes} needs --launch and --rendezvous.")
    return machines


def preparation_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the further options of prepare_wmt14.sh."""
    mirror = ("--mirror", args.mirror) if args.mirror else ()
    return (*mirror, "--rehearsal") if args.rehearsal else mirror
