"""The verb args: what the scripts are made of."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_floater.experiments.hardware import add_machine_options, machines_from_args
from fairseq_floater.experiments.stages import STAGES, Experiment, one_a_line
from fairseq_floater.experiments.system import add_run_options, run_from_args
from fairseq_floater.verbs import add_verb


def args(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> None:
        experiment = Experiment(args.config)
        system = run_from_args(args)
        places = {"data": args.data, "work": args.work}
        places |= {"machines": machines_from_args(args), "seed": args.seed}
        places["donor"] = args.donor
        words = experiment.arguments(args.stage, system, **places)
        if args.write_all is not None:
            experiment.write_all(args.write_all, system, **places)
        print(one_a_line(words), end="")

    parser = add_verb(
        verbs,
        "args",
        "floater args configs/numbers_en_de.yaml finetune --encoder floater --data data/bin",
        run,
    )
    parser.add_argument("config", metavar="CONFIG", help="an experiment's YAML")
    parser.add_argument("stage", metavar="STAGE", choices=STAGES, help=", ".join(STAGES))
    add_run_options(parser)
    parser.add_argument("--data", default="data/bin", metavar="DIR", help="binarised data")
    parser.add_argument("--work", default="work", metavar="DIR", help="the experiment's folder")
    parser.add_argument("--donor", metavar="DIR", help="the donor's folder (default: WORK/plain)")
    parser.add_argument("--seed", type=int, help="of training (default: the file's)")
    add_machine_options(parser)
    parser.add_argument(
        "--write-all", metavar="DIR", help="also write every stage's arguments as DIR/<stage>.args"
    )
