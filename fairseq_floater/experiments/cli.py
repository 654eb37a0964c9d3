"""Add the verbs of an experiment: run, args and info."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.hardware import add_machine_options, machines_from_args, use_gpus
from fairseq_floater.experiments.run_folder import RECORD, RunFolder
from fairseq_floater.experiments.stages import STAGES, Experiment
from fairseq_floater.experiments.system import add_system_options, system_from_args
from fairseq_floater.verbs import add_verb


@dataclass(frozen=True)
class Arguments:
    """The words of a command line."""

    arguments: list[str]

    def format_text(self) -> str:
        """Return one a line."""
        return "\n".join(self.arguments)


@dataclass(frozen=True)
class RunRecord:
    """The record of a run."""

    folder: Path

    def format_text(self) -> str:
        """Return the file that holds it."""
        return str(self.folder / RECORD)

    def to_json_dict(self) -> dict[str, Any]:
        """Return what it holds."""
        return RunFolder(self.folder).read()


def add_args(verbs: Any) -> None:
    """Add `floater args`."""

    def run(**options: Any) -> Arguments:
        args = argparse.Namespace(**options)
        places = {"data": args.data, "work": args.work, "donor": args.donor, "seed": args.seed}
        words = Experiment(args.config).arguments(
            args.stage, system_from_args(args), machines=machines_from_args(args), **places
        )
        return Arguments(words)

    parser = add_verb(
        verbs,
        "args",
        "floater args configs/numbers_en_de.yaml finetune --encoder floater --data data/bin",
        run,
    )
    parser.add_argument("config", metavar="CONFIG", help="an experiment's YAML")
    parser.add_argument("stage", metavar="STAGE", choices=STAGES, help=", ".join(STAGES))
    add_system_options(parser)
    parser.add_argument("--data", default="data/bin", metavar="DIR", help="binarised data")
    parser.add_argument("--work", default="work", metavar="DIR", help="the experiment's folder")
    parser.add_argument("--donor", metavar="DIR", help="the donor's folder (default: WORK/plain)")
    parser.add_argument("--seed", type=int, help="of training (default: the file's)")
    add_machine_options(parser, processes=0)


def add_run(verbs: Any) -> None:
    """Add `floater run`."""
    from fairseq_floater.experiments import commands
    from fairseq_floater.experiments.launch import Launcher
    from fairseq_floater.experiments.protocol import Protocol, RunRequest

    def run(**options: Any) -> RunRecord | None:
        args = argparse.Namespace(**options)
        places = {name: options[name] for name in ("raw", "data", "donor", "seed", "losses")}
        experiment = commands.experiment_of(args)
        asked = RunRequest(
            experiment,
            system_from_args(args),
            commands.work_of(args),
            machines=commands.machines_of(args, experiment.config.budget),
            preparation=commands.preparation_of(args),
            **places,
        )
        gpus = use_gpus(asked.machines, dry_run=args.dry_run)
        launcher = Launcher(dry_run=args.dry_run, environment=gpus)
        with launcher.signals():
            protocol = Protocol(asked, launcher)
            protocol.run()
        return None if args.dry_run else RunRecord(protocol.path)

    parser = add_verb(
        verbs,
        "run",
        "floater run configs/numbers_en_de.yaml --encoder floater --blocks all",
        run,
    )
    parser.set_defaults(
        hint="; options of the model go after `--` (scripts/protocol.sh) or into --model-options"
    )
    commands.add_config(parser)
    add_system_options(parser, required=True)
    commands.add_run_options(parser)
    parser.add_argument("--losses", action="store_true", help="also the loss of each test sentence")
    parser.add_argument("--seed", type=int, help="of training (default: the file's)")
    for name, text in (
        ("raw", "parallel text (train, valid and test* files)"),
        ("data", "data that are made (default: WORK/data)"),
        ("donor", "the donor's folder (default: WORK/plain)"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=text)


def add_info(verbs: Any) -> None:
    """Add `floater info`."""
    # Brings torch, which takes seconds; the other verbs of this door do without.
    from fairseq_floater.experiments.info import collect

    def run(*, arch: str, check: bool, **places: Any) -> Any:
        if check:
            # imports fairseq, which takes seconds
            from fairseq_floater.experiments.readiness import check_readiness

            return check_readiness(**places)
        for name, value in places.items():
            if value is not None:
                raise UsageError(f"`--{name}` is an option of `--check`, which is not given.")
        return collect(arch)

    parser = add_verb(
        verbs,
        "info",
        "floater info --arch floater_transformer_vaswani_wmt_en_de_big\n"
        "  floater info --check --config configs/text_base.yaml --processes 8",
        run,
    )
    parser.add_argument(
        "--arch", default="floater_transformer", help="shape for which parameters are counted"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="packages, commands and GPUs instead, and with --config disk and memory; exits with 1 "
        "if something is missing",
    )
    parser.add_argument("--config", metavar="CONFIG", help="--check: an experiment's YAML")
    parser.add_argument("--work", metavar="DIR", help="--check: its folder (work/<name of CONFIG>)")
    parser.add_argument("--data", metavar="DIR", help="--check: data that are made (WORK/data)")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="--check: GPUs to train on (all); 0: the CPU"
    )
