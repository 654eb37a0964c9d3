"""Add the verbs of experiments in translation, and info."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments import commands
from fairseq_floater.experiments.hardware import add_machine_options, machines_from_args, use_gpus
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import STAGES, Experiment
from fairseq_floater.experiments.system import add_system_options, system_from_args
from fairseq_floater.verbs import add_verb, from_options


@dataclass(frozen=True)
class Arguments:
    arguments: list[str]

    def format_text(self) -> str:
        return "\n".join(self.arguments)


def add_args(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> Arguments:
        work = commands.work_of(args)
        data = args.data or work / "data" / "bin"
        places = {"data": data, "work": work, "donor": args.donor, "seed": args.seed}
        arguments = Experiment(args.config).arguments(
            args.stage, system_from_args(args), machines=machines_from_args(args), **places
        )
        return Arguments(arguments)

    parser = add_verb(
        verbs,
        "args",
        "floater args configs/numbers_en_de.yaml finetune --encoder floater",
        from_options(run),
    )
    commands.add_config(parser)
    add = parser.add_argument
    add("stage", metavar="STAGE", choices=tuple(STAGES), help=", ".join(STAGES))
    add_system_options(parser)
    text = "binarised data (default: WORK/data/bin)"
    add("--data", type=Path, metavar="DIR", help=text)
    add("--donor", metavar="DIR", help="the donor's folder (default: WORK/plain)")
    add("--seed", type=int, help="seed of the training (CONFIG's)")
    add_machine_options(parser, processes=0)


def add_run(verbs: Any) -> None:
    from fairseq_floater.experiments.launch import Launcher
    from fairseq_floater.experiments.preparation import RunRequest
    from fairseq_floater.experiments.protocol import Protocol

    def run(args: argparse.Namespace) -> RunFolder | None:
        experiment = Experiment(args.config)
        request = RunRequest(
            experiment,
            system_from_args(args),
            commands.work_of(args),
            raw=args.raw,
            donor=args.donor,
            seed=args.seed,
            machines=machines_from_args(args, experiment.config.budget),
            preparation=commands.preparation_of(args),
            data=args.data,
            losses=args.losses,
        )
        gpus = use_gpus(request.machines, dry_run=args.dry_run)
        launcher = Launcher(dry_run=args.dry_run, job_environments=gpus)
        with launcher.signals():
            protocol = Protocol(request, launcher)
            protocol.run()
        return None if args.dry_run else protocol.folder

    parser = add_verb(
        verbs,
        "run",
        "bash scripts/protocol.sh configs/text_tiny.yaml --raw my_text --encoder floater\n"
        "  bash scripts/protocol.sh configs/numbers_en_de.yaml --encoder t5 -- --t5-max-distance 32",
        from_options(run),
        details="Trains the plain Transformer of CONFIG, the donor, once for all systems. Starts the encoder "
        "from it,\ntrains on at half the peak rate, averages the last checkpoints, translates and scores "
        "every test set.\nA killed run continues where it stopped; SIGTERM saves a checkpoint first. Options "
        "of the model go after `--`.",
    )
    commands.add_config(parser)
    add_system_options(parser, required=True)
    commands.add_run_options(parser)
    add = parser.add_argument
    add("--losses", action="store_true", help="also compute the loss of each test sentence")
    add("--seed", type=int, help="seed of the training (CONFIG's)")
    for name, text in (
        ("raw", "folder of your parallel text: train, valid and test* files"),
        ("data", "prepared data to use (default: made in WORK/data)"),
        ("donor", "run of `--encoder plain`, made there if it is missing (default: WORK/plain)"),
    ):
        add(f"--{name}", type=Path, metavar="DIR", help=text)


def add_run_compare(verbs: Any) -> None:
    _add_comparison(
        verbs,
        "run-compare",
        "bash scripts/compare.sh configs/text_tiny.yaml --raw my_text --seeds 1,2,3\n"
        "  bash scripts/compare.sh configs/numbers_s2l.yaml --encoders rope,t5,floater --status",
        "Trains each system on the text of CONFIG, translates its test sets and scores them. If "
        "CONFIG has\na section `s2l`, splits the text by source length first.",
        by_length=False,
    )


def add_run_s2l(verbs: Any) -> None:
    _add_comparison(
        verbs,
        "run-s2l",
        "bash scripts/s2l.sh configs/numbers_s2l.yaml",
        "Splits the text by source length (section `s2l` of CONFIG: threshold, edges, systems), trains "
        "each\nsystem on the short part, translates and scores each bin.",
        by_length=True,
    )


def add_run_tasks(verbs: Any) -> None:
    from fairseq_floater.experiments import tasks

    parser = add_verb(
        verbs,
        "run-tasks",
        "bash scripts/tasks.sh configs/tasks.yaml --tasks scan:26,reverse --encoders all --seeds 1,2,3",
        from_options(tasks.run),
        details="Makes the text of each task (`floater tasks`), and compares the systems on it as compare.sh "
        "does, in\nWORK/<task>. Ends with exact match by length, our numbers above published ones.",
        json=False,
    )
    parser.set_defaults(by_length=False)
    tasks.add_options(parser)


def _add_comparison(verbs: Any, name: str, example: str, details: str, *, by_length: bool) -> None:
    from fairseq_floater.experiments import compare
    from fairseq_floater.experiments.compare_options import add_options

    details += (
        "\nSkips finished runs, and runs that are in progress in another process. A killed run continues "
        "where it stopped.\nAny number of machines may share the folder. The table shows finished runs."
    )
    run = from_options(compare.run)
    parser = add_verb(verbs, name, example, run, details=details, json=False)
    parser.set_defaults(by_length=by_length)
    add_options(parser)


def add_run_table2(verbs: Any) -> None:
    from fairseq_floater.experiments import table2

    parser = add_verb(
        verbs,
        "run-table2",
        "bash scripts/table2.sh --only 'base-en-de-*'    # a column on this machine's GPUs",
        from_options(table2.run),
        details="Makes data and donor of each column once. Then warm start, further training, averaging, "
        "translation and\nscores of each row, in any order, on any number of machines with a shared "
        "folder. Finished cells are\nskipped. Ends with the table beside the paper's numbers.",
        json=False,
    )
    table2.add_options(parser)


def add_run_demo(verbs: Any) -> None:
    from fairseq_floater.experiments import demo

    parser = add_verb(
        verbs, "run-demo", "bash scripts/demo.sh", demo.run, details=demo.DETAILS, json=False
    )
    text = "where everything goes (default: work/demo)"
    parser.add_argument("--work", type=Path, default=Path("work/demo"), metavar="DIR", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print every command, run none")


def add_info(verbs: Any) -> None:
    # Imports torch, which takes seconds; the other verbs of this module do not need it.
    from fairseq_floater.experiments.info import collect

    def run(*, arch: str, blocks: str, check: bool, **places: Any) -> Any:
        if check:
            # imports fairseq, which takes seconds
            from fairseq_floater.experiments.readiness import check_readiness

            return check_readiness(**places)
        for name, value in places.items():
            if value is not None:
                raise UsageError(f"`--{name}` is an option of `--check`, which is not given.")
        return collect(arch, blocks)

    parser = add_verb(
        verbs,
        "info",
        "floater info --arch floater_transformer_vaswani_wmt_en_de_big\n"
        "  floater info --check --config configs/text_base.yaml --processes 8",
        run,
    )
    add = parser.add_argument
    add("--arch", default="floater_transformer", help="architecture to count parameters for")
    text = (
        "blocks to count parameters for, besides all blocks: input (default), or numbers "
        "from 0: 0,2,4"
    )
    add("--blocks", default="input", metavar="BLOCKS", help=text)
    text = (
        "check packages, commands and GPUs instead, and with --config disk and memory; exits "
        "with 1 if something is missing"
    )
    add("--check", action="store_true", help=text)
    add("--config", metavar="CONFIG", help="--check: configuration")
    add("--work", metavar="DIR", help="--check: CONFIG's folder (work/<name of CONFIG>)")
    add("--data", metavar="DIR", help="--check: prepared data (WORK/data)")
    add("--processes", type=int, metavar="N", help="--check: GPUs to train on (all); 0: the CPU")
