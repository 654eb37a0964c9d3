"""The verb info."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.info import Info, collect
from fairseq_floater.verbs import add_verb

if TYPE_CHECKING:
    from fairseq_floater.experiments.readiness import Readiness


def info(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> Info | Readiness:
        places = {name: getattr(args, name) for name in ("config", "work", "data", "processes")}
        if args.check:
            # imports fairseq, which takes seconds
            from fairseq_floater.experiments.readiness import check

            return check(**places)
        for name, value in places.items():
            if value is not None:
                raise UsageError(f"`--{name}` is an option of `--check`, which is not given.")
        return collect(args.arch)

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
