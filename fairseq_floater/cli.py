"""`floater <verb>`: parses, calls the tool, prints. Results on stdout, progress on stderr.

Exit codes: 0 done, 1 a failure with its reason in one sentence, 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fairseq_floater import corpus, report, scoring
from fairseq_floater.averaging import average
from fairseq_floater.checkpoints import CheckpointError, write_text
from fairseq_floater.experiment import PLAIN, STAGES, USER_DIR, ConfigError, Experiment, Run
from fairseq_floater.info import collect
from fairseq_floater.plots import plot_scores
from fairseq_floater.position_encoders import BLOCKS, POSITION_ENCODERS, TARGETS
from fairseq_floater.version import __version__
from fairseq_floater.warm_start import warm_start

# What a user can cause. Anything else is a fault of ours and keeps its traceback.
USER_ERRORS = (
    CheckpointError,
    corpus.CorpusError,
    report.ReportError,
    scoring.ScoringError,
    ValueError,
    OSError,
)


class Result(Protocol):
    """What a tool returns to be printed."""

    def format_text(self) -> str: ...
    def to_json_dict(self) -> dict[str, Any]: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    parser = build_parser()
    args, extra = parser.parse_known_args(argv)
    if extra and args.verb != "warm-start":
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    args.model_options = extra
    # The models that tools build need not announce themselves; warnings still come.
    logging.getLogger("fairseq_floater").setLevel(logging.WARNING)
    try:
        result = args.run(args)
        if result is not None:
            print(result.format_text())
            if args.json is not None:
                as_json = json.dumps(result.to_json_dict(), indent=2, ensure_ascii=False)
                write_text(args.json, as_json + "\n")
    except ConfigError as error:
        print(f"floater {args.verb}: {error}", file=sys.stderr)
        return 2
    except USER_ERRORS as error:
        print(f"floater {args.verb}: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="floater", description="Tools around the position encoders of fairseq_floater."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (_user_dir, _info, _warm_start, _average, _score, _args, _numbers, _table):
        add(verbs)
    return parser


def _verb(
    verbs: Any, name: str, summary: str, example: str, run: Callable[[argparse.Namespace], Any]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON as well")
    return parser


def _user_dir(verbs: Any) -> None:
    _verb(
        verbs,
        "user-dir",
        "print the folder for fairseq's --user-dir",
        'fairseq-train data --user-dir "$(floater user-dir)" --arch floater_transformer ...',
        lambda args: print(USER_DIR),
    )


def _info(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "info",
        "versions, device, and the encoders with their parameters and Table 1's properties",
        "floater info --arch floater_transformer_vaswani_wmt_en_de_big",
        lambda args: collect(args.arch),
    )
    parser.add_argument(
        "--arch", default="floater_transformer", help="shape for which parameters are counted"
    )


def _warm_start(verbs: Any) -> None:
    parser = _verb(
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
            model_options=args.model_options,
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
        type=_positive,
        metavar="N",
        help="learned: rows that start as the donor's positions (default: longest training "
        "sentence of --data, else all rows)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the new tensors (default: 1)")
    parser.add_argument("--force", action="store_true", help="overwrite OUT")


def _average(verbs: Any) -> None:
    parser = _verb(
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
    choice.add_argument("--last", type=_positive, metavar="N", help="the N latest")
    choice.add_argument("--best", type=_positive, metavar="N", help="the N best on validation")
    parser.add_argument(
        "--updates", action="store_true", help="take checkpoint_<epoch>_<updates>.pt, not epochs"
    )
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--force", action="store_true", help="overwrite the output")


def _args(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> None:
        experiment = Experiment(args.config)
        system = Run(args.encoder, args.blocks, args.target, args.scratch, not args.no_base)
        places = {"data": args.data, "work": args.work, "processes": args.processes}
        words = experiment.arguments(args.stage, system, **places)
        if args.write_all is not None:
            experiment.write_all(args.write_all, system, **places)
        print("\n".join(words))

    parser = _verb(
        verbs,
        "args",
        "the exact fairseq arguments of a stage of an experiment, one a line",
        "floater args configs/numbers_en_de.yaml finetune --encoder floater --data data/bin",
        run,
    )
    parser.add_argument("config", metavar="CONFIG", help="an experiment's YAML")
    parser.add_argument("stage", metavar="STAGE", choices=STAGES, help=", ".join(STAGES))
    parser.add_argument("--encoder", default="floater", choices=(*POSITION_ENCODERS, PLAIN))
    parser.add_argument("--blocks", default="all", choices=BLOCKS)
    parser.add_argument("--target", default=None, choices=TARGETS)
    parser.add_argument(
        "--scratch", action="store_true", help="the run starts from random parameters"
    )
    parser.add_argument(
        "--no-base", action="store_true", help="without fairseq's sinusoid underneath"
    )
    parser.add_argument("--data", default="data/bin", metavar="DIR", help="binarised data")
    parser.add_argument("--work", default="work", metavar="DIR", help="the experiment's folder")
    parser.add_argument(
        "--processes", type=int, default=0, metavar="N", help="GPUs; 0: the CPU (default)"
    )
    parser.add_argument(
        "--write-all", metavar="DIR", help="also write every stage's arguments as DIR/<stage>.args"
    )


def _score(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> Any:
        return scoring.run(
            args.hypotheses,
            args.references,
            target_language=args.target_lang,
            format=args.format,
            remove_bpe=args.remove_bpe,
            check_references=args.self_check,
            tokenize=args.tokenize,
            compound_split=args.compound_split or None,
            test_set=args.test_set,
            bootstrap=args.bootstrap,
            seed=args.seed,
        )

    parser = _verb(
        verbs,
        "score",
        "hypotheses (fairseq-generate's output or plain lines) against raw references",
        "floater score generate.txt --references test.de --target-lang de --json scores.json",
        run,
    )
    parser.add_argument(
        "hypotheses", metavar="HYPOTHESES", help="fairseq-generate's output or lines"
    )
    parser.add_argument(
        "--references", required=True, metavar="FILE", help="raw text, one sentence a line"
    )
    parser.add_argument(
        "--target-lang", required=True, metavar="LANG", help="of the references: de"
    )
    parser.add_argument("--format", default="auto", choices=scoring.FORMATS)
    parser.add_argument(
        "--remove-bpe",
        choices=tuple(scoring.BPE_MARKS),
        help="join subwords first, where the hypotheses still hold them",
    )
    parser.add_argument(
        "--tokenize", default="13a", choices=scoring.TOKENIZERS, help="sacreBLEU's tokenizer (13a)"
    )
    parser.add_argument(
        "--compound-split",
        action="store_true",
        help="insist on BLEU after splitting compounds (made for German by itself, refused elsewhere)",
    )
    parser.add_argument(
        "--test-set", metavar="NAME", help="wmt14/full, wmt14: checks the line count"
    )
    parser.add_argument(
        "--bootstrap",
        type=int,
        default=1000,
        metavar="N",
        help="resamples (default: 1000; 0: none)",
    )
    parser.add_argument("--seed", type=int, default=12345, help="of the resamples (default: 12345)")
    parser.add_argument(
        "--self-check",
        action="store_true",
        help="first see that the reference scores 100 on itself",
    )


def _numbers(verbs: Any) -> None:
    parser = _verb(
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


def _table(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> Any:
        results = report.collect(args.results)
        if args.figure is not None:
            plot_scores(results, args.figure)
        return results

    parser = _verb(
        verbs,
        "table",
        "the scores of all systems in an experiment's folder, as a table and a figure",
        "floater table work/demo --figure scores.png",
        run,
    )
    parser.add_argument("results", metavar="RESULTS_DIR")
    parser.add_argument("--figure", metavar="FILE", help="bars with intervals: png, svg or pdf")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, but is {text}")
    return int(text)
