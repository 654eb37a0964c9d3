"""Run one stage of an experiment with RoBERTa: `scripts/pretrain_flow.sh`, `scripts/finetune.sh`."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_floater.experiments.commands import add_node_options
from fairseq_floater.experiments.hardware import machines_from_args, use_gpus
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.roberta.finetuning import FineTuning
from fairseq_floater.experiments.roberta.protocol import FlowStage, RobertaRequest, Steps
from fairseq_floater.experiments.roberta.stages import ROBERTA, RobertaExperiment
from fairseq_floater.experiments.system import PLAIN, System, add_model_options, system_from_args

WORK = Path("work/tables345")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`request_of` reads, but for ``--work``."""
    add = parser.add_argument
    add(
        "--raw", type=Path, metavar="DIR", help="text and tasks, laid out as `floater quizzes` does"
    )
    add("--donor", type=Path, metavar="FILE", help="a pretrained RoBERTa, dict.txt beside it")
    add("--bpe-dir", type=Path, metavar="DIR", help="of prepare_mlm.sh")
    add("--mirror", metavar="PLACE", help="of prepare_mlm.sh")
    add_node_options(parser)


def request_of(
    args: argparse.Namespace,
    experiment: RobertaExperiment,
    system: System,
    *,
    donor: Path | None,
    seed: int | None,
) -> RobertaRequest:
    preparation = {"--bpe-dir": args.bpe_dir, "--mirror": args.mirror}
    given = ((option, str(value)) for option, value in preparation.items() if value is not None)
    return RobertaRequest(
        experiment,
        system,
        args.work,
        raw=args.raw,
        donor=donor,
        seed=seed,
        machines=machines_from_args(args, experiment.config.budget),
        preparation=tuple(word for pair in given for word in pair),
        extend=getattr(args, "extend", None),  # of single runs alone
    )


def add_flow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the masked-LM stage that :func:`run` reads."""
    _add_config(parser)
    add_model_options(parser, "--encoder", ())
    add_run_options(parser)


def add_finetune_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a fine-tuning that :func:`run` reads."""
    _add_config(parser)
    text = "cola sst-2 mrpc qqp sts-b mnli qnli rte race squad1 squad2, as far as CONFIG has them"
    parser.add_argument("--task", required=True, metavar="T", help=text)
    text = "of fine-tuning (default: the configuration's)"
    parser.add_argument("--seed", type=int, metavar="N", help=text)
    add_model_options(parser, "--system", (ROBERTA,), required=True)
    add_run_options(parser)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="an experiment's YAML")
    add_work(parser)
    text = "of `floater warm-start`, where --max-positions is above the donor's"
    parser.add_argument("--extend", choices=("tile", "last"), help=text)


def add_work(parser: argparse.ArgumentParser) -> None:
    text = "everything goes to DIR/<name of CONFIG> and DIR/data (default: work/tables345)"
    parser.add_argument("--work", type=Path, default=WORK, metavar="DIR", help=text)


def run(args: argparse.Namespace) -> None:
    """Run the masked-LM stage, or the fine-tuning where the command line names a task."""
    args.encoder = PLAIN if args.encoder == ROBERTA else args.encoder
    experiment, system = RobertaExperiment(args.config), system_from_args(args)
    task, seed = getattr(args, "task", None), getattr(args, "seed", None)
    request = request_of(args, experiment, system, donor=args.donor, seed=seed)
    gpus = use_gpus(request.machines, dry_run=args.dry_run)
    launcher = Launcher(dry_run=args.dry_run, environment=gpus)
    job: Steps = FineTuning(request, task, launcher) if task else FlowStage(request, launcher)
    with launcher.signals():
        job.run()
