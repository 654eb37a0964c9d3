"""Run one stage of an experiment with RoBERTa: `scripts/pretrain_flow.sh`, `scripts/finetune.sh`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_floater.errors import exit_code
from fairseq_floater.experiments.commands import add_node_options, machines_of
from fairseq_floater.experiments.hardware import use_gpus
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.roberta.finetuning import FineTuning
from fairseq_floater.experiments.roberta.protocol import FlowStage, RobertaRequest, Steps
from fairseq_floater.experiments.roberta.stages import ROBERTA, RobertaExperiment
from fairseq_floater.experiments.system import PLAIN, System, add_model_options, system_from_args

WORK = Path("work/tables345")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`asked_of` reads, but for ``--work``."""
    add = parser.add_argument
    add(
        "--raw", type=Path, metavar="DIR", help="text and tasks, laid out as `floater quizzes` does"
    )
    add("--donor", type=Path, metavar="FILE", help="a pretrained RoBERTa, dict.txt beside it")
    add("--bpe-dir", type=Path, metavar="DIR", help="of prepare_mlm.sh")
    add("--mirror", metavar="PLACE", help="of prepare_mlm.sh")
    add_node_options(parser)


def asked_of(
    args: argparse.Namespace,
    experiment: RobertaExperiment,
    system: System,
    *,
    donor: Path | None,
    seed: int | None,
) -> RobertaRequest:
    """Return the request of a parsed command line."""
    preparation = {"--bpe-dir": args.bpe_dir, "--mirror": args.mirror}
    given = ((option, str(value)) for option, value in preparation.items() if value is not None)
    return RobertaRequest(
        experiment,
        system,
        args.work,
        raw=args.raw,
        donor=donor,
        seed=seed,
        machines=machines_of(args, experiment.config.budget),
        preparation=tuple(word for pair in given for word in pair),
        extend=getattr(args, "extend", None),  # of single runs alone
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(dest="part", required=True)
    for part in ("pretrain-flow", "finetune"):
        own = parts.add_parser(
            part, prog=f"scripts/{part.replace('-', '_')}.sh", allow_abbrev=False
        )
        own.add_argument("config", type=Path, metavar="CONFIG")
        own.add_argument("--work", type=Path, default=WORK, metavar="DIR")
        if part == "finetune":
            own.add_argument("--task", required=True)
            own.add_argument("--seed", type=int)
            add_model_options(own, "--system", (ROBERTA,), required=True)
        else:
            add_model_options(own, "--encoder", ())
        own.set_defaults(usage=own)
        own.add_argument("--extend", choices=("tile", "last"))
        add_run_options(own)
    return parser


def _run(args: argparse.Namespace) -> None:
    args.encoder = PLAIN if args.encoder == ROBERTA else args.encoder
    experiment, system = RobertaExperiment(args.config), system_from_args(args)
    seed = args.seed if args.part == "finetune" else None
    asked = asked_of(args, experiment, system, donor=args.donor, seed=seed)
    gpus = use_gpus(asked.machines, dry_run=args.dry_run)
    launcher = Launcher(dry_run=args.dry_run, environment=gpus)
    is_stage = args.part == "pretrain-flow"
    job: Steps = FlowStage(asked, launcher) if is_stage else FineTuning(asked, args.task, launcher)
    with launcher.signals():
        job.run()


if __name__ == "__main__":
    arguments, unknown = _parser().parse_known_args()
    if unknown:
        hint = "; options of the model go into --model-options" if "--" in sys.argv else ""
        arguments.usage.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    sys.exit(exit_code(lambda: _run(arguments)))
