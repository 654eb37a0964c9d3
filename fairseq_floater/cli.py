"""`floater <verb>`: parses, calls the tool, prints. Results on stdout, progress on stderr.

Exit codes: 0 done, 1 a failure with its reason in one sentence or a check that failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from fairseq_floater import cli_analysis, cli_s2l, corpus, report, scoring
from fairseq_floater.averaging import average
from fairseq_floater.checkpoints import CheckpointError, write_text
from fairseq_floater.cli_common import add_verb, positive
from fairseq_floater.errors import UsageError
from fairseq_floater.experiment import STAGES, USER_DIR, Experiment
from fairseq_floater.info import Info, collect
from fairseq_floater.machines import add_machine_options, machines_from_args
from fairseq_floater.parallel_text import TextDataError
from fairseq_floater.readiness import Readiness, check
from fairseq_floater.s2l.bins import S2LError
from fairseq_floater.system_run import add_run_options, run_from_args
from fairseq_floater.version import __version__
from fairseq_floater.warm_start import warm_start

# What a user can cause. Anything else is a fault of ours and keeps its traceback.
USER_ERRORS = (
    CheckpointError,
    corpus.CorpusError,
    report.ReportError,
    scoring.ScoringError,
    S2LError,
    TextDataError,
    ValueError,
    OSError,
)


class Result(Protocol):
    """What a tool returns to be printed. One whose ``failed`` is true makes the exit code 1."""

    def format_text(self) -> str: ...
    def to_json_dict(self) -> dict[str, Any]: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    parser = build_parser()
    args, extra = parser.parse_known_args(argv)
    if extra and args.verb != "warm-start":
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    args.extra = extra
    # The models that tools build need not announce themselves; warnings still come.
    logging.getLogger("fairseq_floater").setLevel(logging.WARNING)
    try:
        result = args.run(args)
        if result is not None:
            print(result.format_text())
            if args.json is not None:
                as_json = json.dumps(result.to_json_dict(), indent=2, ensure_ascii=False)
                write_text(args.json, as_json + "\n")
    except USER_ERRORS as error:
        name = " ".join(filter(None, ("floater", args.verb, getattr(args, "part", None))))
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 1 if getattr(result, "failed", False) else 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="floater", description="Tools around the position encoders of fairseq_floater."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    tools = (_user_dir, _info, _numbers, _args, _warm_start, _average)
    looks = (cli_analysis.score, cli_s2l.s2l, cli_analysis.table, cli_analysis.plot)
    for add in (*tools, *looks):
        add(verbs)
    return parser


def _user_dir(verbs: Any) -> None:
    add_verb(
        verbs,
        "user-dir",
        "print the folder for fairseq's --user-dir",
        'fairseq-train data --user-dir "$(floater user-dir)" --arch floater_transformer ...',
        lambda args: print(USER_DIR),
    )


def _info(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> Info | Readiness:
        places = {name: getattr(args, name) for name in ("config", "work", "data", "processes")}
        if args.check:
            return check(**places)
        for name, value in places.items():
            if value is not None:
                raise UsageError(f"`--{name}` is an option of `--check`, which is not given.")
        return collect(args.arch)

    parser = add_verb(
        verbs,
        "info",
        "versions, device, and the encoders with their parameters and Table 1's properties; "
        "or what is missing",
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


def _warm_start(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "warm-start",
        "a plain Transformer's checkpoint -> one that starts a model with positions",
        "floater warm-start donor/checkpoint_best.pt start.pt --arch floater_transformer \\\n"
        "    --data data/bin --position-blocks all\n"
        "  fairseq-train ... --finetune-from-model start.pt\n"
        "any option of the model (--position-encoder, --floater-delta, ...) may follow",
        lambda args: warm_start(
            args.donor,
            args.out,
            arch=args.arch,
            data=args.data,
            model_options=args.extra,
            trained_length=args.trained_length,
            force=args.force,
            seed=args.seed,
        ),
    )
    parser.add_argument("donor", metavar="DONOR", help="checkpoint of fairseq's transformer")
    parser.add_argument("out", metavar="OUT", help="checkpoint to write")
    parser.add_argument("--arch", required=True, help="a floater_transformer architecture")
    parser.add_argument("--data", metavar="DIR", help="binarised data to compare dictionaries with")
    parser.add_argument(
        "--trained-length",
        type=positive,
        metavar="N",
        help="learned: rows that start as the donor's positions (default: longest training "
        "sentence of --data, else all rows)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the new tensors (default: 1)")
    parser.add_argument("--force", action="store_true", help="overwrite OUT")


def _average(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "average",
        "the mean of several checkpoints",
        "floater average --inputs checkpoints --last 5 --output average.pt",
        lambda args: average(
            args.inputs,
            args.output,
            last=args.last,
            best=args.best,
            updates=args.updates,
            force=args.force,
        ),
    )
    parser.add_argument("--inputs", nargs="+", required=True, metavar="DIR_OR_FILE")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=positive, metavar="N", help="the N latest")
    choice.add_argument("--best", type=positive, metavar="N", help="the N best on validation")
    parser.add_argument(
        "--updates", action="store_true", help="take checkpoint_<epoch>_<updates>.pt, not epochs"
    )
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--force", action="store_true", help="overwrite the output")


def _args(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> None:
        experiment = Experiment(args.config)
        system = run_from_args(args)
        places = {"data": args.data, "work": args.work}
        places |= {"machines": machines_from_args(args), "seed": args.seed}
        places["donor"] = args.donor
        words = experiment.arguments(args.stage, system, **places)
        if args.write_all is not None:
            experiment.write_all(args.write_all, system, **places)
        print("\n".join(words))

    parser = add_verb(
        verbs,
        "args",
        "the exact fairseq arguments of a stage of an experiment, one a line",
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


def _numbers(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "numbers",
        "the built-in corpus: real number words in two languages, exact references",
        "floater numbers numbers --tgt fr --train 20000",
        lambda args: corpus.write_numbers(
            args.out_dir,
            source_language=args.src,
            target_language=args.tgt,
            train=args.train,
            valid=args.valid,
            test=args.test,
            test_long=args.test_long,
            numbers_per_line=tuple(args.numbers_per_line),
            long_numbers_per_line=tuple(args.long_numbers_per_line),
            max_number=args.max_number,
            seed=args.seed,
            overwrite=args.force,
        ),
    )
    parser.add_argument("out_dir", metavar="OUT_DIR")
    parser.add_argument("--src", default="en", metavar="LANG", help="en, de or fr (default: en)")
    parser.add_argument("--tgt", default="de", metavar="LANG", help="en, de or fr (default: de)")
    for split, lines in (("train", 12_000), ("valid", 500), ("test", 500), ("test-long", 500)):
        parser.add_argument(
            f"--{split}", type=int, default=lines, metavar="N", help=f"lines ({lines})"
        )
    for name, span in (("numbers-per-line", (1, 4)), ("long-numbers-per-line", (6, 10))):
        parser.add_argument(
            f"--{name}", type=int, nargs=2, default=span, metavar=("MIN", "MAX"), help=f"{span}"
        )
    parser.add_argument("--max-number", type=int, default=9_999, metavar="N", help="largest (9999)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="replace a corpus of other parameters")
