"""The verb s2l: short-to-long data, and scores bin by bin."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.bins import Bins
from fairseq_floater.evaluation.s2l.figure import plot_s2l
from fairseq_floater.evaluation.s2l.score import score as score_s2l
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.evaluation.s2l.split_options import SplitOptions
from fairseq_floater.evaluation.s2l.systems import SystemFiles
from fairseq_floater.evaluation.score import TOKENIZERS
from fairseq_floater.figures import checked_format
from fairseq_floater.verbs import VERBS, add_verb, positive, share


def s2l(verbs: Any) -> None:
    parser = verbs.add_parser(
        "s2l",
        help=VERBS["s2l"].summary,
        description="The short-to-long evaluation: train on short sentences, test on longer ones.",
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    _s2l_split(parts)
    _s2l_score(parts)


def _s2l_split(parts: Any) -> None:
    def run(
        raw_dir: Path,
        out_dir: Path,
        *,
        threshold: int | None,
        edges: list[list[int]] | None,
        force: bool,
        workers: int,
        **given: Any,
    ) -> Any:
        flat = None if edges is None else [n for word in edges for n in word]
        options = SplitOptions(edges=Bins.from_options(threshold, flat).edges, **given)
        return split(raw_dir, out_dir, options, force=force, threads=workers)

    parser = add_verb(
        parts,
        "split",
        "floater s2l split my_text my_split --src en --tgt fr --vocab 8000 --threshold 80",
        run,
        summary="parallel text -> train and valid with short sources, test with long ones in bins",
    )
    parser.add_argument("raw_dir", type=Path, metavar="RAW_DIR", help="train, valid, test* files")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR")
    parser.add_argument("--src", dest="source", required=True, metavar="LANG")
    parser.add_argument("--tgt", dest="target", required=True, metavar="LANG")
    parser.add_argument(
        "--threshold",
        type=positive,
        metavar="N",
        help="train below N source tokens, without the end symbol; test from there on (80)",
    )
    parser.add_argument(
        "--edges",
        type=_edges,
        nargs="+",
        metavar="N",
        help="where the bins begin (80 100 120 140, or the same multiples of --threshold)",
    )
    parser.add_argument(
        "--both-sides", action="store_true", help="train and valid: targets below N as well"
    )
    tokens = parser.add_mutually_exclusive_group(required=True)
    tokens.add_argument(
        "--vocab", type=positive, metavar="N", help="learn N subwords, on the short part only"
    )
    tokens.add_argument("--spm-model", type=Path, metavar="FILE", help="a sentencepiece model")
    tokens.add_argument("--encoded", action="store_true", help="the text is in sentencepieces")
    parser.add_argument(
        "--max-len",
        type=positive,
        default=1000,
        metavar="N",
        help="leave out pairs with more tokens on a side (1000)",
    )
    parser.add_argument(
        "--max-per-bin", type=positive, metavar="N", help="an even sample of the test pairs"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--character-coverage", type=share, default=1.0, metavar="SHARE")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="threads (1)")
    parser.add_argument("--force", action="store_true", help="replace OUT_DIR")


def _s2l_score(parts: Any) -> None:
    def run(
        split_dir: Path,
        *,
        hypotheses: list[tuple[str, str]],
        losses: list[tuple[str, str]],
        short: list[tuple[str, str]],
        short_losses: list[tuple[str, str]],
        labels: list[tuple[str, str]],
        max_len_a: float | None,
        max_len_b: float | None,
        figure: list[str],
        **options: Any,
    ) -> Any:
        if (max_len_a is None) != (max_len_b is None):
            raise UsageError("`--max-len-a` and `--max-len-b` are one rule: give both or none.")
        for path in figure:
            checked_format(path)  # before the work, not after it
        scores = score_s2l(
            split_dir,
            _systems(hypotheses, losses),
            short_systems=_systems(short, short_losses),
            length_limit=None if max_len_a is None or max_len_b is None else (max_len_a, max_len_b),
            labels=dict(labels),
            **options,
        )
        for path in figure:
            plot_s2l(scores, path)
        return scores

    parser = add_verb(
        parts,
        "score",
        "floater s2l score my_split --hypotheses plain=plain.txt --hypotheses floater=floater.txt \\\n"
        "    --baseline plain --figure s2l.png s2l.svg\n"
        "several files under one name are several training seeds of that system",
        run,
        summary="hypotheses of one or more models against the references of a split, bin by bin",
    )
    parser.add_argument("split_dir", type=Path, metavar="SPLIT_DIR", help="of floater s2l split")
    for option, text in (
        ("--hypotheses", "fairseq-generate's output for test, or plain lines"),
        ("--losses", "fairseq-generate --score-reference of test: the loss per token"),
        ("--short", "hypotheses of test_short: the trained lengths beside the bins"),
        ("--short-losses", "the loss on test_short"),
    ):
        parser.add_argument(
            option,
            type=_named_value,
            action="append",
            default=[],
            required=option == "--hypotheses",
            metavar="NAME=FILE",
            help=text,
        )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="compare every system with this one: difference and two-sided p-value",
    )
    parser.add_argument(
        "--label",
        dest="labels",
        type=_named_value,
        action="append",
        default=[],
        metavar="NAME=LABEL",
        help="what tables and figures call a system (its name)",
    )
    for name in ("a", "b"):
        parser.add_argument(
            f"--max-len-{name}",
            type=float,
            metavar="X",
            help="of generation: counts cut-off output",
        )
    parser.add_argument(
        "--tokenize", default="13a", choices=TOKENIZERS, help="sacreBLEU's tokenizer (13a)"
    )
    parser.add_argument(
        "--bootstrap", type=int, default=1000, metavar="N", help="resamples (1000; 0: none)"
    )
    parser.add_argument("--seed", type=int, default=12345, help="of the resamples (12345)")
    parser.add_argument(
        "--figure", nargs="+", default=[], metavar="FILE", help="bars by bin: png, svg or pdf"
    )


def _edges(text: str) -> list[int]:
    return [positive(edge) for edge in text.split(",") if edge]


def _named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, but is {text!r}")
    return name, value


def _systems(
    hypotheses: Sequence[tuple[str, str]], losses: Sequence[tuple[str, str]]
) -> list[SystemFiles]:
    """Files by system, in the order of first mention; a name that comes again is another seed."""
    systems = {name: SystemFiles(name) for name, _ in hypotheses}
    for name, path in hypotheses:
        systems[name].hypotheses.append(path)
    for name, path in losses:
        if name not in systems:
            raise UsageError(f"`{name}={path}` is the loss of a system without hypotheses.")
        systems[name].losses.append(path)
    return list(systems.values())
