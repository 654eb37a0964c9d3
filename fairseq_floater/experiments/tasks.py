"""Compare systems on tasks, with one comparison for each task in ``WORK/<task>`` (`scripts/tasks.sh`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_floater.data.task_generators import TASKS
from fairseq_floater.errors import UsageError, UserError, sentence
from fairseq_floater.experiments import compare, compare_options
from fairseq_floater.experiments.commands import work_of
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher


def task_names(text: str) -> dict[str, tuple[str, ...]]:
    """Parse ``scan:26,reverse`` into arguments of `floater tasks` by the name of the task's folder."""
    return dict(map(_task, text.split(",")))


def _task(word: str) -> tuple[str, tuple[str, ...]]:
    name, colon, cutoff = word.partition(":")
    if name == "scan" and cutoff.isdecimal():
        return f"scan-{cutoff}", (name, "--cutoff", cutoff)
    if name in TASKS and not colon:
        return name, (name,)
    known = f"some of scan:CUTOFF, {', '.join(TASKS)}"
    raise argparse.ArgumentTypeError(f"must be {known}, with commas, but is {word!r}")


def add_options(parser: argparse.ArgumentParser) -> None:
    text = f"scan:CUTOFF, {', '.join(TASKS)}, with commas"
    parser.add_argument("--tasks", type=task_names, required=True, metavar="NAMES", help=text)
    text = "your copy of SCAN's tasks.txt (default: download it)"
    parser.add_argument("--from", dest="file", type=Path, metavar="FILE", help=text)
    compare_options.add_options(parser)


def run(args: argparse.Namespace) -> None:
    """Run the comparison of each task, then show the published numbers. If one fails, the rest still run.

    Raises:
        UserError: runs of a task failed.
    """
    work, failures = work_of(args), []
    for name, words in args.tasks.items():
        file = ("--from", str(args.file)) if args.file and words[0] == "scan" else ()
        changes = {"work": work / name, "task": (*words, *file)}
        print(f"{'# ' if args.dry_run else ''}Task {name}", flush=True)
        try:
            compare.run(argparse.Namespace(**{**vars(args), **changes}))
        except UsageError:
            raise
        except (UserError, OSError) as error:
            failures.append(f"{name}: {sentence(error)}")
    if not (args.list or args.status):
        files = ("--json", work / "tasks.json", "--figure", work / "tasks.png")
        command = floater("table", work, *files)
        if args.dry_run or any(work.glob("*/compare.json")):
            Launcher(dry_run=args.dry_run).show(command, work / "tasks.md")
    if failures:
        raise UserError(" ".join(failures))
